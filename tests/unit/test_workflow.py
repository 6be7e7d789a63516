# SPDX-License-Identifier: Apache-2.0
"""The state machine of a task, and the format of a workflow."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic import tasks
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.workflow_file import read_workflows
from distperiodic.core import definitions
from distperiodic.core import task_values
from distperiodic.core import workflow
from distperiodic.core.workflow import Action
from distperiodic.core.workflow import CommandOutcome
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status
from distperiodic.core.workflow import StepDefinition

NORMAL = Action('m', 'do')
ROLLBACK = Action('m', 'undo')

DEFINITIONS = st.lists(st.booleans(), min_size=1, max_size=6).map(
    lambda undone: tuple(
        StepDefinition(NORMAL, ROLLBACK if can else None) for can in undone))


def follow(definition, outcomes, cancelled_after=None):
    """Run the state machine. Return the commands in the order in which they
    ran, and the last position.

    :param outcomes: Outcomes of the commands, in the order in which they run.
        Further commands end with DONE.
    :param cancelled_after: Number of started commands after which a user asks
        to cancel the task. None means never.
    """
    position, ran = workflow.START, []
    outcomes = iter(outcomes)
    while position.active:
        action = workflow.action_at(definition, position)
        assert action is (
            definition[position.step].rollback if position.back
            else definition[position.step].normal)
        ran.append((position.step, position.back))
        cancelling = (cancelled_after is not None
                      and len(ran) >= cancelled_after)
        position = workflow.advance(
            definition, position, next(outcomes, CommandOutcome.DONE),
            cancelling)
        assert len(ran) <= 2 * len(definition)
    return ran, position


def expected(definition, outcomes, cancelled_after=None):
    """Return the result of :func:`follow`, computed as the documentation
    describes it.
    """
    ran, outcomes = [], list(outcomes)

    def outcome():
        return (outcomes[len(ran) - 1] if len(ran) <= len(outcomes)
                else CommandOutcome.DONE)
    for step in range(len(definition)):
        ran.append((step, False))
        cursor = step
        found = outcome()
        if found is CommandOutcome.LOST:
            return ran, Position(Status.STUCK, cursor, step, False)
        if found is CommandOutcome.FAILED or (
                cancelled_after is not None and len(ran) >= cancelled_after):
            break
    else:
        return ran, Position(Status.SUCCEEDED, cursor, cursor, False)
    for step in reversed(range(cursor + 1)):
        if definition[step].rollback is None:
            continue
        ran.append((step, True))
        if outcome() is not CommandOutcome.DONE:
            return ran, Position(Status.STUCK, cursor, step, True)
    cancelled = cancelled_after is not None and len(ran) >= cancelled_after
    return ran, Position(Status.CANCELLED if cancelled else Status.FAILED,
                         cursor, 0, True)


@given(DEFINITIONS, st.lists(st.sampled_from(CommandOutcome), max_size=12),
       st.none() | st.integers(1, 8))
def test_a_task_runs_as_documented(definition, outcomes, cancelled_after):
    ran, position = follow(definition, outcomes, cancelled_after)
    model_ran, model = expected(definition, outcomes, cancelled_after)

    assert ran == model_ran
    # A user may also ask to cancel the task after its last step has failed.
    assert position == model


@given(DEFINITIONS, st.lists(st.sampled_from(CommandOutcome), max_size=12))
def test_a_task_never_runs_a_step_after_a_rollback_or_twice(
        definition, outcomes):
    ran, position = follow(definition, outcomes)

    assert len(set(ran)) == len(ran)
    forward = [step for step, back in ran if not back]
    assert ran[:len(forward)] == [(step, False) for step in range(
        len(forward))]
    assert position.cursor == len(forward) - 1


@given(DEFINITIONS)
def test_a_task_that_waits_is_cancelled_at_once(definition):
    assert workflow.cancel(
        definition, workflow.START, started=False).status == 'cancelled'
    assert workflow.cancel(definition, workflow.START, started=True) is None


def test_a_task_cancelled_between_two_steps_rolls_back_the_steps_done():
    definition = (StepDefinition(NORMAL, ROLLBACK),) * 3
    position = Position(Status.RUNNING, 2, 2)

    assert workflow.cancel(definition, position, started=False) == Position(
        Status.ROLLING_BACK, 2, 1, True)


def test_a_stuck_task_goes_on_where_it_is_stuck():
    definition = (StepDefinition(NORMAL, ROLLBACK),) * 3
    forward = Position(Status.STUCK, 1, 1)
    back = Position(Status.STUCK, 2, 1, True)

    assert workflow.retry(definition, forward, None) == Position(
        Status.RUNNING, 1, 1)
    assert workflow.retry(definition, forward, True) == Position(
        Status.ROLLING_BACK, 1, 1, True)
    assert workflow.retry(definition, back, None) == Position(
        Status.ROLLING_BACK, 2, 1, True)
    assert workflow.retry(definition, back, False) == Position(
        Status.RUNNING, 2, 1)
    assert workflow.cancel(definition, back, started=False) == Position(
        Status.ROLLING_BACK, 2, 0, True)


def test_a_task_that_has_ended_well_or_is_running_is_not_retried():
    definition = (StepDefinition(NORMAL),)

    for status in (Status.SUCCEEDED, Status.RUNNING, Status.WAITING):
        assert workflow.retry(definition, Position(status), None) is None
    assert workflow.retry(
        definition, Position(Status.FAILED), None) == workflow.START


@given(DEFINITIONS)
def test_a_recorded_workflow_is_equal_to_the_workflow(definition):
    text = json.dumps(definitions.as_data(definition))

    assert definitions.parse_definition(json.loads(text)) == definition


STEP = {'normal': {'module': 'm', 'command': 'do'}}


@pytest.mark.parametrize(('source', 'where'), [
    ([], ''),
    ({'x': []}, 'x: '),
    ({'x': {}}, 'x: '),
    ({'x': 'do'}, 'x: '),
    ({'': [STEP]}, ''),
    ({5: [STEP]}, ''),
    ({'x': [{}]}, 'x[0]: '),
    ({'x': [STEP, 5]}, 'x[1]: '),
    ({'x': [{**STEP, 'undo': {}}]}, 'x[0].undo: '),
    ({'x': [{'normal': {'module': 'm'}}]}, 'x[0].normal: '),
    ({'x': [{'normal': {'module': 'm n', 'command': 'c'}}]},
     'x[0].normal.module: '),
    ({'x': [{'normal': {**STEP['normal'], 'timeout': -1}}]},
     'x[0].normal.timeout: '),
    ({'x': [{'normal': {**STEP['normal'], 'timeout': float('nan')}}]},
     'x[0].normal.timeout: '),
    ({'x': [{'normal': {**STEP['normal'], 'timeout': True}}]},
     'x[0].normal.timeout: '),
    ({'x': [{'normal': {**STEP['normal'], 'retry': 1.5}}]},
     'x[0].normal.retry: '),
    ({'x': [{'normal': {**STEP['normal'], 'delivery': []}}]},
     'x[0].normal.delivery: '),
    ({'x': [STEP, {**STEP, 'rollback': {
        **STEP['normal'], 'retry': 1, 'delivery': 'at_most_once'}}]},
     'x[1].rollback.retry: '),
    ({'x': [{**STEP, 'rollback': []}]}, 'x[0].rollback: '),
    ({'x': [STEP] * 1001}, 'x: '),
])
def test_an_invalid_workflow_is_refused_with_its_place(source, where):
    with pytest.raises(exceptions.InvalidWorkflow) as caught:
        definitions.parse_workflows(source, 'file.yaml')

    text = str(caught.value)
    assert text.startswith(f'file.yaml: {where}')
    assert '\n' not in text


@pytest.mark.parametrize(('text', 'place'), [
    ('x:\n  - normal: {module: m, command: c, retry: -1}\n', ':2:44: '),
    ('x:\n  - normal: {module: m}\n', ':2:13: '),
    ('x:\n- normal: {module: m, command: c, delivery: at_most_once,\n'
     '           retry: 2}\n', ':3:19: '),
    ('x: [\n', ':2:1: '),
    ('x: []\nx: []\n', ':2:1: '),
    ('{"x": [\n\t{"normal": {"module": "m", "command": "", "x": 1}}]}',
     ':2:49: '),
    ('- 1\n', ':1:1: '),
    ('? [1, 2]\n: []\n', ':1:3: '),
    ('x: !!int y\n', ":1:4: 'y' is not a valid int; "),
    ('x: !!timestamp y\n', ":1:4: 'y' is not a valid timestamp; "),
    ('x:\n- 2026-99-99\n', ":2:3: '2026-99-99' is not a valid timestamp; "),
    ('x: ' + 3000 * '[', ':1:24: the values are nested too deeply'),
    ('x: &a [*a]\n', ':1:4: the values are nested too deeply'),
    ('a: &a [[[[[[[[[[]]]]]]]]]]\nb: &b [[[[[[[[*a]]]]]]]]\n'
     'c: [[[[[*b]]]]]\n', ':1:14: the values are nested too deeply'),
    ('x: !ours y\n', ':1:4: .*!ours.*; write .* without a tag'),
    ('x: 1\n---\ny: 1\n', ':2:1: expected a single document .*, but found '),
    ('x: *a\n', ":1:4: found undefined alias 'a'; correct the YAML here"),
    ('x:\n  \x1b\n', r":2:3: the character '\\x1b' is not allowed"),
    ('on: []\n', ':1:1: .*True, which is not text; .* in quotes'),
    ('5: []\n', ':1:4: .*5, which is not text; .* in quotes'),
    ('"m.ok ": []\n', ":1:10: .*'m.ok ', which begins or ends with a space"),
    ('x:\n- normal: {module: m, command: "c "}\n',
     ":2:32: .*'c ', which begins or ends with a space; remove the space"),
    ('x:\n- normal: {module: m, command: c, timeout: 1e300}\n',
     ":2:44: .*'1e300' is text, not a number; write digits without quotes"),
    ('x:\n- normal: {module: m, command: c, retry: "3"}\n',
     ":2:42: .*'3' is text, not a number; write digits without quotes"),
    ('x:\n- normal: {module: m, command: c, timeout: 1.0e+300}\n',
     r':2:44: .*1e\+300 is too large; give seconds > 0 and up to 3162240000'),
    ('x:\n- normal: {module: m, command: c, timeout: ' + '9' * 5000 + '}\n',
     ":2:44: '9*... is not a valid int"),
    ('x:\n', ':1:3: x: None is not a list of steps; give a list'),
    ('x:\n- normal: {command: c}\n',
     ":2:11: .*'module' is missing; give the name of the module"),
    ('x:\n- normal: {module: m}\n',
     ":2:11: .*'command' is missing; give the name of the command"),
    ('x:\n- {normal: {module: m, command: c}, "a\\nb": 1}\n',
     r":2:45: x\[0\].'a\\nb': unknown key"),
    ('{"x": [\n {"normal": {"module": "m", "command": "c"} } ,\n'
     '  {"normal" : {"module": "м"}}]}', ":3:26: .*'м'; give 1 to 90 .* A-Z"),
    ('{"x": [{"normal": {"module": "m", "command": "c",\n "timeout": NaN}}]}',
     ':2:13: .*nan is not a valid time limit; give seconds > 0 and up to'),
    ('{"x": [{"normal": {"module": "m", "command": "c",\n "timeout": '
     + '9' * 5000 + '}}]}', ':2:13: .*inf is not a valid time limit'),
    ('{"x": "]]\\"]",\n "y" : [\t{ } , 5 ]\r\n, "x": 7}',
     ":3:3: 'x' is given twice; remove or rename"),
    ('{"x": [{"normal": {},}]}', ':1:22: .*; correct the JSON here'),
    ('{"x": ' + '[' * 100_000, ':1:26: the values are nested too deeply'),
    ('{"\\ud83d": []}', r":1:12: '\\ud83d': the type of task is"),
])
def test_an_invalid_file_is_refused_with_line_and_column(
        tmp_path, text, place):
    path = tmp_path / ('f.json' if text.startswith('{') else 'f.yaml')
    path.write_text(text, encoding='utf-8', newline='')

    with pytest.raises(exceptions.InvalidWorkflow) as caught:
        read_workflows(str(path))

    assert re.match(re.escape(str(path)) + place, str(caught.value))
    assert str(caught.value).isprintable()
    assert '; ' in str(caught.value)


def test_json_is_read_as_json(tmp_path):
    """A YAML parser would interpret these numbers and escapes differently."""
    path = tmp_path / 'F.JSON'
    path.write_text(
        '\ufeff{"\\ud83d\\ude00": [{"normal": {"module": "m", '
        '"command": "1\\/2", "timeout":1e3}}]\t}', encoding='utf-8')

    assert read_workflows(str(path)) == {'😀': (StepDefinition(
        Action('m', '1/2', timeout=1000.0)),)}
    path.write_text('null')
    assert read_workflows(str(path)) == {}


def test_an_anchor_may_be_used_many_times(tmp_path):
    path = tmp_path / 'f.yaml'
    path.write_text('x: &x\n- normal: &n {module: m, command: c}\n'
                    '- {normal: *n, rollback: *n}\ny: *x\n')

    found = read_workflows(str(path))

    assert found['x'] == found['y'] == (
        StepDefinition(Action('m', 'c')),
        StepDefinition(Action('m', 'c'), Action('m', 'c')))


@pytest.mark.parametrize('content', [b'\xff\xfe', None])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / 'f.yaml'
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(exceptions.InvalidWorkflow, match=str(path)):
        read_workflows(str(path))


def test_a_file_of_yaml_and_of_json_are_read_alike(tmp_path):
    source = {'x': [STEP | {'rollback': {
        'module': 'm', 'command': 'undo', 'timeout': 5, 'retry': 3,
        'delivery': 'at_least_once'}}]}
    (tmp_path / 'f.json').write_text(json.dumps(source, indent='\t'))
    (tmp_path / 'f.yaml').write_text(
        'x:\n- normal: {module: m, command: do}\n  rollback:\n'
        '    module: m\n    command: undo\n    timeout: 5\n    retry: 3\n'
        '    delivery: at_least_once\n')

    found = [read_workflows(str(tmp_path / name))
             for name in ('f.json', 'f.yaml')]

    assert found[0] == found[1] == definitions.parse_workflows(source)


@pytest.mark.parametrize(('names', 'told'), [
    (('m', 'ok '), "the command is 'ok ', which begins or ends with a space"),
    (('м', 'ok'), "the module is 'м'; give 1 to 90 characters from A-Z"),
    (('m', 5), 'the command is 5, which is not text')])
def test_a_command_is_declared_with_a_name_that_a_task_can_have(names, told):
    with pytest.raises(exceptions.InvalidWorkflow, match=told):
        tasks.command(*names)


@pytest.mark.parametrize('result', [
    {'at': object()}, {1: 'x'}, ['x'], 'x', {'x': float('nan')},
    {'x': '\ud800'}, {'x': 'y' * 1_000_001}])
def test_a_result_that_cannot_be_merged_is_refused(result):
    with pytest.raises(exceptions.InvalidTask) as caught:
        task_values.result_text(result)

    assert '\n' not in str(caught.value)
    assert len(str(caught.value)) < 400


_BOMB = 'a0: &a0 [{normal: {module: m, command: c}}]\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 9)}]\n' for n in range(1, 7))
_MERGES = 'a0: &a0 {k: v}\n' + ''.join(
    f'a{n}: &a{n} {{<<: [{", ".join([f"*a{n - 1}"] * 9)}]}}\n'
    for n in range(1, 7))


@pytest.mark.parametrize('name', ['w.yaml', 'w.json'])
@pytest.mark.parametrize('text', [
    pytest.param(_BOMB, id='bomb'), pytest.param(_MERGES, id='merges'),
    pytest.param('a: ' + '[' * 100_000, id='deep'),
    pytest.param('[' * 100_000, id='brackets'),
    pytest.param('{"a":' * 100_000, id='braces'),
    pytest.param('a: &x [*x]', id='cycle'),
    pytest.param('a: ' + '9' * 6_000, id='digits'),
    pytest.param('{"a": 1' + '0' * 6_000 + '}', id='number'),
    pytest.param('a: [{normal: {module: m, command: c, timeout: .nan}}]',
                 id='nan'),
    pytest.param('a: !!python/object:os.system x', id='tag'),
    pytest.param('"\\ud800": []', id='surrogate'),
    pytest.param('a: *' + 'x' * 50_000, id='alias'),
    pytest.param(f'{"x" * 50_000}: 1\n{"x" * 50_000}: 2', id='twice'),
    pytest.param('a: !!set {b, c}', id='set'),
    pytest.param('? [a, b]\n: 1', id='key'), pytest.param('\0', id='nul'),
    pytest.param('#' * 2_000_001, id='long'),
])
def test_an_odd_file_is_refused_at_once_in_a_short_line(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    clock = SystemClock()
    start = clock.monotonic()

    with pytest.raises(exceptions.InvalidWorkflow) as caught:
        read_workflows(str(path))

    assert clock.monotonic() - start < 5
    message = str(caught.value).removeprefix(str(path))
    assert 0 < len(message) < 700
    assert '\n' not in message


def test_a_device_a_fifo_and_a_directory_are_refused_at_once(tmp_path):
    fifo = tmp_path / 'fifo'
    os.mkfifo(fifo)
    for path in ('/dev/zero', str(fifo), str(tmp_path), 'a\0b'):
        with pytest.raises(exceptions.InvalidWorkflow):
            read_workflows(path)


@pytest.mark.parametrize('text', [_BOMB, _MERGES])
def test_aliases_are_counted_with_the_nodes_that_they_repeat(tmp_path, text):
    path = tmp_path / 'w.yaml'
    path.write_text(text)

    with pytest.raises(exceptions.InvalidWorkflow, match='aliases repeat'):
        read_workflows(str(path))


def test_aliases_may_repeat_a_step(tmp_path):
    path = tmp_path / 'w.yaml'
    path.write_text('a: [&s {normal: {module: m, command: c}}, *s, *s]\n')

    assert len(read_workflows(str(path))['a']) == 3
