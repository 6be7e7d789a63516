# SPDX-License-Identifier: Apache-2.0
"""The documentation agrees with the code in every point that a test can
compare.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import pathlib
import re
import sqlite3
import textwrap
import tomllib

import pytest

import distperiodic
from distperiodic import events
from distperiodic import exceptions
from distperiodic import service
from distperiodic import sql
from distperiodic import tasks
from distperiodic.adapters.coordination import driver as redis_groups
from distperiodic.adapters.local.workflow_file import read_workflows
from distperiodic.adapters.redis import client as redis_bus
from distperiodic.core import control_message
from distperiodic.core import message
from distperiodic.core import metric_table
from distperiodic.core import reason
from distperiodic.core.outcomes import Fate
from distperiodic.core.ring import Ring
from distperiodic.flow.counters import Counted
from distperiodic.operator import health
from tests.chaos import plan
from tests.mutants.bug import bugs
from tests.simulation import draws
from tests.simulation import planted
from tests.simulation import scenes
from tests.simulation import standby

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / 'doc' / 'source'
LOG_LINES = (SOURCE / 'reference' / 'log-lines.rst').read_text()


def assert_lists(page, listed, expected):
    """Assert that *page* lists exactly what the code has."""
    lacks, has = ([one for one in some if one not in other]
                  for some, other in ((expected, listed), (listed, expected)))
    assert sorted(listed) == sorted(expected), (
        f'add {lacks} to {page}, and remove {has}, which the code lacks')


def log_calls():
    """Event, keys and file of each log call above DEBUG, except in the demo.
    """
    paths = (ROOT / 'distperiodic').rglob('*.py')
    for path in sorted(p for p in paths if p.parent.name != 'demo'):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == 'LOG'
                    and node.func.attr != 'debug'):
                continue
            text = next((arg.value for arg in node.args
                         if isinstance(arg, ast.Constant)
                         and isinstance(arg.value, str)), None)
            if text is not None:
                event = re.split(r': (?=\S* ?\w+=)|;| \(', text)[0]
                yield event, re.findall(r'(\w+)=%', text), path.name


def documented_log_lines():
    """The documented log events, each with its description."""
    found = re.findall(r'^``([^`]+)``: [A-Z, ]+\n((?:    .*\n)+)',
                       LOG_LINES, re.MULTILINE)
    assert found
    return dict(found)


def test_the_fields_of_each_message_are_documented():
    """A receiver drops a message that has other fields."""
    request = control_message.ControlRequest(
        '0' * 32, 'g', 'job pause', {}, [], 'me@host', '', 0)
    reply = control_message.ControlReply('0' * 32, '', 'm', 'p', True, '')
    reports = message.encode_reports([message.Report('1', 'w')], to='s')
    encoded = [
        message.encode_batch(message.Batch(
            '1', 'poll', 0, ['a'], [1], [1], 's', 'w', 'lease', trace='')),
        reports, *reports['reports'],
        message.encode_notice(message.Notice(['t'])),
        control_message.encode_request(request),
        control_message.encode_reply(reply)]
    documented = re.findall(
        r'^field +type +meaning\n=[= ]+\n((?:.+\n)+?)=[= ]+\n',
        (SOURCE / 'reference' / 'messages.rst').read_text(), re.MULTILINE)

    assert [re.findall(r'^``(\w+)``', rows, re.MULTILINE)
            for rows in documented] == [list(one) for one in encoded], (
        'list the fields of each message in doc/source/reference/messages.rst '
        'in their order')


def test_each_log_line_is_listed_with_its_keys_and_no_other():
    documented = documented_log_lines()
    unknown = {*documented}
    for event, keys, name in log_calls():
        pattern = re.compile(re.escape(event).replace('%s', '.+'))
        listed = [one for one in documented if pattern.fullmatch(one)]
        assert listed, (
            f'list {event!r} of {name} in doc/source/reference/log-lines.rst')
        for one in listed:
            assert [key for key in keys
                    if f'``{key}``' not in documented[one]] == [], (
                f'describe these keys of {one!r} in '
                'doc/source/reference/log-lines.rst')
        unknown.difference_update(listed)
    assert unknown == set(), (
        'no log call has these events; remove them from '
        'doc/source/reference/log-lines.rst')


def test_each_number_of_a_scheduler_is_listed_and_no_other():
    rows = LOG_LINES.partition('``SchedulerService.counts``')[2]

    listed = re.findall(r'^``([a-z ]+)`` +[a-z]+  ', rows, re.MULTILINE)

    assert_lists('the table "Counts" of doc/source/reference/log-lines.rst',
                 listed, [one.value for one in Counted])


def test_each_event_is_documented_with_its_fields_and_an_example():
    page = (SOURCE / 'reference' / 'events.rst').read_text()
    found = re.findall(
        r'^``(\w+)\(([\w, ]+)\)``\n(?:    .*\n|\n)+?    Example: ``((?:.|\n)+?'
        r')``\n', page, re.MULTILINE)

    assert {name: tuple(fields.split(', ')) for name, fields, _ in found} == {
        kind.__name__: kind._fields for kind in events.KINDS}
    assert len(found) == len(events.KINDS)
    for name, _, example in found:
        made = eval(' '.join(example.split()),  # noqa: S307
                    dict(vars(events)))
        assert type(made).__name__ == name


def test_each_metric_is_documented_with_its_type_and_labels():
    page = (SOURCE / 'reference' / 'metrics.rst').read_text()
    found = re.findall(
        r'^   \* - ``(\w+)``\n     - (\w+)\n     - ([\w, ]+)\n     - (\w+)\n',
        page, re.MULTILINE)

    assert found == [
        (metric.name, metric.kind, ', '.join(metric.labels) or 'none',
         metric.source) for metric in metric_table.METRICS]


def test_each_reason_is_listed_and_no_other():
    page = (SOURCE / 'reference' / 'reasons.rst').read_text()

    listed = re.findall(r'^``([^`]+)``\n    ', page, re.MULTILINE)

    assert_lists('doc/source/reference/reasons.rst', listed,
                 [one.value for one in reason.Reason])


def test_each_code_of_a_finding_is_listed_with_its_severity():
    page = (SOURCE / 'reference' / 'health.rst').read_text()

    listed = re.findall(r'^([a-z-]+)\n~+\n\n(Failure|Warning), about ', page,
                        re.MULTILINE)

    assert_lists('doc/source/reference/health.rst', listed, [
        (name, code.severity.capitalize())
        for name, code in health.CODES.items()])


def test_each_class_of_an_audit_is_listed():
    page = (SOURCE / 'howto' / 'audit.rst').read_text()

    listed = re.findall(r'^``([A-Z][a-z ]+)`` ', page, re.MULTILINE)

    assert listed == [fate.capitalize() for fate in Fate], (
        'list each class in doc/source/howto/audit.rst, in the order of Fate '
        'in core/outcomes.py')


def test_every_command_is_documented():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    page = (SOURCE / 'reference' / 'command-line.rst').read_text()
    commands = [name.replace('_', ' ')
                for name in project['entry-points']['distperiodic.cli']]

    assert [name for name in commands
            if f'\n``distperiodic {name}' not in page] == [], (
        'describe these commands in doc/source/reference/command-line.rst')


@pytest.mark.parametrize('path', sorted({
    path for page in SOURCE.rglob('*.rst') for path in re.findall(
        r'``((?:tests|examples|etc|doc/source)/[\w./-]+)``',
        page.read_text())}))
def test_a_file_that_a_page_names_is_there(path):
    assert (ROOT / path).exists(), (
        f'correct the pages that git grep -l {path} doc/source prints')


def test_each_file_is_there_that_a_contributor_is_to_change():
    page = (SOURCE / 'contributor' / 'where.rst').read_text()
    package = ROOT / 'distperiodic'
    files = {str(path.relative_to(package)) for path in package.rglob('*.py')}
    # A name without a directory continues a list of files.
    files |= {pathlib.Path(path).name for path in files} | {'doc/pictures.py'}

    named = set(re.findall(r'``((?!tests/)[\w/]+\.py)``', page))

    assert len(named) > 100
    assert named - files == set(), (
        'correct these names in doc/source/contributor/where.rst')


def named_tests():
    """(file, test) of each test that a page cites."""
    return sorted({found for page in SOURCE.rglob('*.rst')
                   for found in re.findall(r'``(tests/[\w/]+\.py)::(\w+)``',
                                           page.read_text())})


@functools.cache
def functions_in(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(('path', 'name'), named_tests())
def test_a_test_that_a_page_names_is_there(path, name):
    assert name in functions_in(path), (
        f'correct the pages that git grep -l {name} doc/source prints')


@pytest.mark.parametrize('number', range(1, 12))
def test_a_guarantee_names_its_conditions_and_its_tests(number):
    page = (SOURCE / 'explanation' / 'guarantees.rst').read_text()
    [section] = re.findall(
        rf'^G{number}\. [^\n]+\n~+\n(.+?)(?=^[^\n]+\n[~-]{{4}})', page,
        re.MULTILINE | re.DOTALL)

    assert re.search(r'^Rests on\n    \w', section, re.MULTILINE)
    assert re.search(r'^Held by\n    ``tests/[\w/]+\.py::test_', section,
                     re.MULTILINE)


def script(path):
    """Import a script that belongs to no package; return its module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_a_claims_moves_is_that_of_the_table():
    claim_moves = script(ROOT / 'doc' / 'claim_moves.py')
    drawn = SOURCE / 'explanation' / 'claim-moves.txt'

    assert drawn.read_text() == claim_moves.picture(), (
        'run: python doc/claim_moves.py > doc/source/explanation/'
        'claim-moves.txt')


PICTURES = script(ROOT / 'doc' / 'pictures.py').PICTURES


@pytest.mark.parametrize('name', sorted(PICTURES))
def test_a_picture_is_up_to_date_with_its_script(name):
    drawn = SOURCE / 'images' / name

    assert drawn.read_text() == PICTURES[name](), (
        'run: python doc/pictures.py')


def test_every_picture_is_shown_on_a_page():
    shown = {path for page in SOURCE.rglob('*.rst') for path in re.findall(
        r'^ *\.\. (?:image|figure):: \S*images/(\S+)$', page.read_text(),
        re.MULTILINE)}

    assert_lists('a page, as an image', shown, {
        path.name for path in (SOURCE / 'images').iterdir()})


def documented_objects():
    """Return the objects whose docstrings the API pages show."""
    paths = {path for page in (SOURCE / 'reference').glob('python*.rst')
             for path in re.findall(
                 r'^\.\. auto(?:class|function|exception):: ([\w.]+)',
                 page.read_text(), re.MULTILINE)}
    homes = (path.rpartition('.') for path in paths)
    return [getattr(importlib.import_module(home), name)
            for home, _, name in homes]


def public_objects():
    """Return (name, object) of everything that a user may import."""
    found = {name: getattr(module, name)
             for module in (distperiodic, service, sql, tasks)
             for name in module.__all__}
    found |= {name: value for name, value in vars(exceptions).items()
              if isinstance(value, type)}
    return sorted(found.items())


@pytest.mark.parametrize('name', [name for name, _ in public_objects()])
def test_a_public_name_is_documented(name):
    assert dict(public_objects())[name] in documented_objects(), (
        f'add an autoclass, autofunction or autoexception of {name} to a page '
        'doc/source/reference/python*.rst')


_RECEIVED = (distperiodic.Context, tasks.Command, tasks.Queue, tasks.Status,
             tasks.Step, tasks.Task)


def public_signatures():
    """Yield the functions, classes and methods that a user may call."""
    for name, value in public_objects():
        if not inspect.isclass(value):
            yield pytest.param(value, value.__doc__, id=name)
        elif not issubclass(value, exceptions.DistperiodicError):
            # Programs receive objects of these classes and never create one.
            if value not in _RECEIVED:
                yield pytest.param(value, value.__doc__, id=name)
            for method, function in inspect.getmembers(
                    value, inspect.isfunction):
                if not method.startswith('_') and (
                        function.__module__.startswith('distperiodic')):
                    yield pytest.param(function, function.__doc__,
                                       id=f'{name}.{method}')


@pytest.mark.parametrize(
    ('called', 'docstring'), list(public_signatures()))
def test_a_docstring_has_each_parameter(called, docstring):
    # The decorator accepts unknown arguments only to reject them.
    wanted = [name for name in inspect.signature(called).parameters
              if name not in ('self', 'unknown')]

    assert [name for name in wanted
            if f':param {name}:' not in docstring] == [], (
        f'describe these parameters in the docstring of '
        f'{called.__qualname__}')


def test_the_readme_shows_the_first_program_of_the_tutorial():
    program = (SOURCE / 'tutorial' / 'first_job.py').read_text()
    shown = program[program.index('import logging'):].replace(
        'first_job.conf', 'ping.conf')

    assert textwrap.indent(shown, '    ') in (ROOT / 'README.rst').read_text()


def test_no_program_that_is_shown_has_the_group_of_another():
    """If two programs had the same group, the claims of one would count for
    the other.
    """
    pages = [ROOT / 'README.rst', *(SOURCE / 'tutorial').glob('*.rst'),
             *(ROOT / 'examples').rglob('*.conf')]
    sections = [
        section for page in pages for section in re.findall(
            r'^ *\[distperiodic\]\n((?: *\S.*\n)+)', page.read_text(),
            re.MULTILINE)]
    groups = [re.findall(r'^ *group = (\S+)$', section, re.MULTILINE)
              for section in sections]

    assert len(groups) == 7
    assert all(len(found) == 1 for found in groups)
    assert len({found[0] for found in groups} - {'distperiodic'}) == 7


@pytest.mark.parametrize('path', [
    'README.rst', 'doc/source/tutorial/first_job.py',
    'doc/source/tutorial/first_workflow.py'])
def test_a_program_that_is_shown_does_not_start_without_its_file(path):
    """The file names the group; oslo.config rejects a missing file."""
    text = (ROOT / path).read_text()

    assert 'cfg.CONF()' not in text
    assert re.search(r"cfg\.CONF\(default_config_files=\['\w+\.conf'\]\)",
                     text)


def test_the_workflows_that_are_shown_are_read_and_an_error_is_as_shown(
        tmp_path):
    page = (SOURCE / 'reference' / 'workflows.rst').read_text()
    blocks = re.findall(r'code-block:: (\w+)\n\n((?:   .*\n|\n)+)', page)
    kinds, texts = zip(*((kind, textwrap.dedent(text).strip())
                         for kind, text in blocks), strict=True)
    assert kinds == ('yaml', 'json', 'text')
    file = tmp_path / 'workflows.yaml'

    for text, steps in zip(texts, (3, 1), strict=False):
        file.write_text(text)
        assert len(read_workflows(str(file))['create_instance']) == steps
    file.write_text(texts[0].replace('timeout: 600', 'timeout: soon'))
    with pytest.raises(exceptions.InvalidWorkflow) as raised:
        read_workflows(str(file))

    assert str(raised.value) == f'{tmp_path}/{" ".join(texts[2].split())}'


def test_the_arcs_of_all_members_read_every_row_once():
    push_down = script(SOURCE / 'howto' / 'push_down.py')
    ring = Ring({'a': 40, 'b': 40, 'c': 400})
    volumes = [f'volume-{number}' for number in range(1000)]
    with sqlite3.connect(':memory:') as database:
        push_down.create(database)
        for volume in volumes:
            push_down.insert(database, volume)
        read = {member: push_down.owned(database, ring.arcs(member))
                for member in ring.members}

    assert sorted(sum(read.values(), [])) == sorted(volumes)
    for member, owned in read.items():
        assert {ring.owner_of(volume) for volume in owned} == {member}


def test_the_page_about_brokers_lists_the_rights_of_redis_users():
    page = (SOURCE / 'howto' / 'brokers.rst').read_text()

    assert [block.split() for block in re.findall(
        r'    ACL SETUSER NAME on >PASSWORD ((?:.+\n)+)', page)] == [
            redis_bus.RIGHTS.split(),
            ['~distperiodic_*', *redis_groups.REDIS_COMMANDS.split()]]


def to_avoid():
    """Return a pattern of the expressions that HACKING.rst lists."""
    page = (ROOT / 'HACKING.rst').read_text()
    [text] = re.findall(
        r'^Names of tests\n-+\n\n(?:.+\n)+\n((?:    .+\n)+)', page,
        re.MULTILINE)
    patterns = []
    for one in text.split(';'):
        words = r' '.join(r'\w+' if word == '*' else word
                          for word in one.split())
        begins, dots, _ = words.partition(' ...')
        patterns.append(rf'^{begins}\b' if dots else rf'\b{words}\b')
    return re.compile('|'.join(patterns))


def names_in(path):
    """Yield the names of the tests in a file, of their cases and events."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            if node.name.startswith('test_'):
                yield node.name.removeprefix('test_')
        elif isinstance(node, ast.Call):
            named = [one.value for one in node.keywords
                     if one.arg in ('id', 'ids')]
            if getattr(node.func, 'attr', None) in ('happened', 'strike'):
                named += node.args
            yield from (one.value for value in named
                        for one in ast.walk(value)
                        if isinstance(one, ast.Constant)
                        and isinstance(one.value, str))


def test_no_name_of_a_test_a_bug_or_an_event_has_an_expression_to_avoid():
    """HACKING.rst lists the expressions."""
    names = [
        *(name for path in sorted((ROOT / 'tests').rglob('*.py'))
          for name in names_in(path)),
        *(one.name for one in bugs()), *planted.BUGS, *scenes.SCENES,
        *draws.FAULTS, *draws.OPERATOR, *standby.FAULTS, *plan.KINDS]
    pattern = to_avoid()

    assert len(names) > 1000
    assert [name for name in names for part in name.split(':')
            if pattern.search(re.sub(r'[\W_]+', ' ', part.lower()).strip())
            ] == [], 'HACKING.rst, "Names of tests", lists what to avoid'
