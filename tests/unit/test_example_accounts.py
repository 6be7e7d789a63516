# SPDX-License-Identifier: Apache-2.0
"""The account at the end of each example finds the faults in wrong histories.
The examples that need servers name a server that is missing.
"""

import importlib.util
import pathlib
import types

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'


def load(example, file='run'):
    """Import a file of an example; return its module."""
    spec = importlib.util.spec_from_file_location(
        f'{example}_{file}', EXAMPLES / example / f'{file}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- provisioning

GOOD, BAD = 'g', 'b'
FAILS = {GOOD: None, BAD: 1}
QUOTA = 1000


def events(*runs):
    """Return the lines of a journal in which runs follow each other.

    :param runs: (event, pid, task, step, command, fence) of each run; its
        event is its outcome, or 'killed'.
    """
    lines = []
    for outcome, pid, *run in runs:
        rest = ' '.join(map(str, run))
        lines += [f'begin {pid} {rest}',
                  f'killed {pid}' if outcome == 'killed'
                  else f'{outcome} {pid} {rest}']
    return lines


RIGHT = (
    ('done', 1, GOOD, 0, 'normal', 1), ('done', 1, GOOD, 1, 'normal', 2),
    ('done', 1, BAD, 0, 'normal', 1), ('failed', 1, BAD, 1, 'normal', 2),
    ('failed', 1, BAD, 1, 'normal', 3), ('killed', 1, BAD, 1, 'rollback', 4),
    ('done', 2, BAD, 1, 'rollback', 5), ('done', 2, BAD, 0, 'rollback', 6))


def task(id_, status):
    return types.SimpleNamespace(
        id=id_, status=status, steps=[None, None],
        parameters={'Name': id_, 'Storage': 100})


@pytest.fixture
def cloud(tmp_path):
    """Return the platform after the history RIGHT."""
    made = load('provisioning', 'cloud').Cloud(tmp_path / 'cloud.sqlite')
    made.create(QUOTA)
    for id_ in (GOOD, BAD):
        for _ in range(2):
            made.create_instance(id_, 'h1')
            made.deduct(id_, 100)
    made.delete_instance(BAD)
    for _ in range(2):
        made.restore(BAD)
        made.report('key', f'{BAD} was not created')
    return made


def provisioning_faults(cloud, lines=(), good='succeeded', bad='failed'):
    return load('provisioning', 'account').faults(
        [task(GOOD, good), task(BAD, bad)], FAILS, QUOTA, cloud,
        list(lines) or events(*RIGHT))


def test_the_account_of_provisioning_accepts_a_right_history(cloud):
    assert provisioning_faults(cloud) == []


@pytest.mark.parametrize(('change', 'found'), [
    (lambda cloud: cloud.create_instance(BAD, 'h1'),
     "the instances are not those of the succeeded tasks: ['b']"),
    (lambda cloud: cloud.delete_instance(GOOD),
     "the instances are not those of the succeeded tasks: ['g']"),
    (lambda cloud: cloud.deduct(BAD, 100),
     '800 GB are free instead of 900 GB'),
    (lambda cloud: cloud.restore(GOOD), '1000 GB are free instead of 900 GB'),
    (lambda cloud: cloud.report('other', f'{BAD} was not created'),
     "the events are ['b was not created', 'b was not created'] instead of "
     "['b was not created']")])
def test_the_account_of_provisioning_finds_a_wrong_platform(
        cloud, change, found):
    change(cloud)

    assert provisioning_faults(cloud) == [found]


@pytest.mark.parametrize('status', ['running', 'stuck', 'failed'])
def test_the_account_of_provisioning_finds_a_wrong_status(cloud, status):
    assert f'g is {status}, not succeeded' in provisioning_faults(
        cloud, good=status)


@pytest.mark.parametrize(('lines', 'found'), [
    (events(*RIGHT[:1], *RIGHT[2:]), 'g: ran'),
    (events(*RIGHT[:6], RIGHT[7]),
     "b: (1, 'rollback') was killed, and did not run again"),
    (events(*RIGHT[:6]),
     "b: the outcome of (1, 'rollback') is killed, but nothing ran after it"),
    (events(('failed', 1, GOOD, 0, 'normal', 1), *RIGHT[1:]),
     "g: (0, 'normal') failed, but (1, 'normal') followed"),
    (events(*RIGHT[:5], ('done', 2, BAD, 0, 'rollback', 4),
            ('done', 2, BAD, 1, 'rollback', 5)), 'b: ran'),
    (events(*RIGHT[:5], ('done', 2, BAD, 0, 'rollback', 4)), 'b: ran'),
    (events(RIGHT[0], ('done', 3, GOOD, 0, 'normal', 2),
            ('done', 3, GOOD, 1, 'normal', 3), *RIGHT[2:]),
     None),
    (events(('done', 2, GOOD, 0, 'normal', 1),
            ('done', 2, GOOD, 0, 'normal', 2),
            ('done', 2, GOOD, 1, 'normal', 3), *RIGHT[2:]),
     "g: (0, 'normal') ran again after it was done"),
    (events(RIGHT[0], ('done', 1, GOOD, 1, 'normal', 1), *RIGHT[2:]),
     "g: (1, 'normal') has fence 1 after 1"),
    (['begin 2 g 0 normal 1', 'begin 2 g 1 normal 2', 'done 2 g 0 normal 1',
      'done 2 g 1 normal 2', *events(*RIGHT[2:])],
     "g: (1, 'normal') began before (0, 'normal') ended"),
    (['begin 2 g 0 normal 1', 'begin 3 g 0 normal 2', 'done 3 g 0 normal 2',
      'done 3 g 1 normal 2', *events(RIGHT[1], *RIGHT[2:])],
     "g: (0, 'normal') began before (0, 'normal') ended")])
def test_the_account_of_provisioning_finds_wrong_runs(cloud, lines, found):
    faults = provisioning_faults(cloud, lines)

    if found is not None:
        assert any(fault.startswith(found) for fault in faults), faults
    else:
        # The process of the first run was killed later, so its result may
        # have been lost.
        assert faults == []


# -- ordered_queue

def in_order(queue, numbers, pid=1):
    return [f'{event} {pid} {queue} {number}'
            for number in numbers for event in ('begin', 'end')]


MYSQL = in_order('mysql', range(15))


def test_the_account_of_the_queues_accepts_the_run_of_a_killed_process():
    lines = [*in_order('oracle', range(4)), 'begin 2 oracle 4', 'killed 2',
             *in_order('oracle', range(4, 15)), *MYSQL]

    assert load('ordered_queue').account(lines) == 0


@pytest.mark.parametrize(('oracle', 'found'), [
    (['begin 1 oracle 0', 'begin 2 oracle 1', 'end 1 oracle 0',
      'end 2 oracle 1', *in_order('oracle', range(2, 15))],
     'oracle: task 1 began before task 0 had ended'),
    (['begin 2 oracle 0', *in_order('oracle', range(15)), 'end 2 oracle 0'],
     'oracle: task 0 began before task 0 had ended'),
    ([*in_order('oracle', [0], 2), *in_order('oracle', range(15))],
     'oracle: task 0 ran again, but its process was not killed'),
    ([*in_order('oracle', range(14))], 'oracle: the tasks ran in the order'),
    ([*in_order('oracle', [1, 0, *range(2, 15)])],
     'oracle: the tasks ran in the order'),
    ([*in_order('oracle', range(14)), 'begin 1 oracle 14'],
     'oracle: a run of task 14 has no end')])
def test_the_account_of_the_queues_finds_wrong_runs(oracle, found, capsys):
    assert load('ordered_queue').account([*oracle, *MYSQL]) == 1
    assert found in capsys.readouterr().out


# -- standby

FIRST = [('begin', 1, 0.0), ('end', 1, 0.1), ('begin', 1, 0.5)]
SECOND = [('begin', 2, 4.0), ('end', 2, 4.1), ('begin', 2, 4.5)]
THIRD = [('begin', 3, 8.0), ('end', 3, 8.1), ('begin', 3, 8.5)]


def test_the_account_of_standby_accepts_workers_one_after_the_other():
    """Only the last use by each worker may be interrupted."""
    assert load('standby').account(
        [*FIRST, *SECOND, *THIRD], [1, 2, 3], [3.0, 3.0]) == 0


@pytest.mark.parametrize(('history', 'gaps', 'found'), [
    ([*FIRST[:1], *SECOND[:1], ('end', 1, 4.2), SECOND[1], *THIRD],
     [3.0, 3.0], '2 used the licence before 1 ended'),
    ([*FIRST, *SECOND, *THIRD[:1], ('end', 2, 8.1), *THIRD[1:]],
     [3.0, 3.0], '3 used the licence before 2 ended'),
    ([*FIRST, *SECOND, *THIRD, ('begin', 2, 9.0), ('end', 2, 9.1)],
     [3.0, 3.0], '[1, 2, 3, 2] used the licence in turn, not [1, 2, 3]'),
    ([FIRST[0], *FIRST, *SECOND, *THIRD], [3.0, 3.0],
     'a use by 1 has no end'),
    ([*FIRST, *SECOND, *THIRD], [3.0, 4.6],
     'the next worker was active after 4.6 s instead of 0 to 4.5 s'),
    ([*FIRST, *SECOND, *THIRD], [-0.2, 3.0],
     'the next worker was active after -0.2 s instead of 0 to 4.5 s')])
def test_the_account_of_standby_finds_a_wrong_history(
        history, gaps, found, capsys):
    assert load('standby').account(history, [1, 2, 3], gaps) == 1
    assert found in capsys.readouterr().out


# -- partitions

@pytest.mark.parametrize(('alone', 'beside', 'hanging', 'code', 'found'), [
    (0.1, 0.2, 3, 0, '3 reports hang: as many'),
    (1.5, 0.2, 3, 0, '3 reports hang: as many'),
    (0.1, 1.5, 3, 1, 'WRONG: an invoice began 1.5 s after its tick'),
    (0.1, 0.2, 4, 1, 'WRONG: 4 reports hang, but')])
def test_the_account_of_the_partitions_finds_a_late_neighbour(
        alone, beside, hanging, code, found, capsys):
    account = load('partitions').account

    assert account([0.0, alone], [0.0, beside], hanging) == code
    assert found in capsys.readouterr().out


def test_the_partitions_give_up_if_the_neighbour_stalls(
        monkeypatch, tmp_path):
    partitions = load('partitions')
    monkeypatch.setattr(partitions, 'LIMIT', 0)
    (tmp_path / 'journal').touch()

    with pytest.raises(SystemExit, match='WRONG: the partition billing'):
        partitions.watch(tmp_path / 'journal')


# -- control

def checks(control, owners, ticks, late=0.1):
    return [control.Event('begin', f'scheduler-{owner}', host, tick,
                          tick + late)
            for tick in ticks for host, owner in owners.items()]


BEFORE = {'a': 'scheduler-1', 'b': 'scheduler-2', 'c': 'scheduler-3'}
AFTER = {'a': 2, 'b': 2, 'c': 3}


def drain_faults(*parts):
    """Return the faults of a drain that is answered at 105.5."""
    control = load('control')
    return control.drain_faults(
        [event for part in parts for event in checks(control, *part)],
        'scheduler-1', BEFORE, 105.5)


def test_a_drain_that_moves_only_the_objects_of_its_member_is_right():
    # The object that is claimed late shows no owner.
    assert drain_faults(({'a': 1}, (105,)), (AFTER, (106, 107)),
                        ({'c': 2}, (108,), 0.6)) == []


@pytest.mark.parametrize(('parts', 'found'), [
    ([(AFTER, (106,)), ({'b': 1}, (107,), 0.6)],
     'scheduler-1 claimed b 1.5 s after it was drained'),
    ([(AFTER, (106,)), ({**AFTER, 'a': 3}, (107,))],
     'a moved more than once'),
    ([({**AFTER, 'b': 3}, (106, 107))], 'b moved from scheduler-2')])
def test_a_drain_that_breaks_its_promise_is_found(parts, found):
    [fault] = drain_faults(*parts)

    assert fault.startswith(found)


def test_the_owners_are_settled_once_each_host_has_one_of_three(monkeypatch):
    control = load('control')
    monkeypatch.setattr(control, 'HOSTS', 3)
    three = checks(control, {'a': 1, 'b': 2, 'c': 3}, (101, 102))

    assert control.settled(three, 100.5) == BEFORE
    for events in ([*three, *checks(control, {'a': 2}, (102,))],
                   checks(control, {'a': 1, 'b': 2, 'c': 2}, (101,)),
                   checks(control, {'a': 1, 'b': 2}, (101,))):
        assert control.settled(events, 100.5) is None


@pytest.mark.parametrize(('runs', 'found'), [
    ('b1 e1 b2 e2 b2', []),
    ('b2 e2 b2', []),
    ('b1 b2 e1 e2', ['1 used the licence after 2 was active',
                     '2 used the licence before 1 had ended']),
    ('b1 e1 b2 e2 b1 e1', ['1 used the licence after 2 was active'] * 2)])
def test_a_promotion_after_which_both_workers_run_is_found(runs, found):
    control = load('control')
    events = [control.Event({'b': 'begin', 'e': 'end'}[run[0]], run[1],
                            'licence', 0.0, 0.0) for run in runs.split()]

    assert control.promote_faults(events, '1', '2') == found


def test_the_account_of_control_fails_if_anything_is_wrong():
    account = load('control').account

    assert (account([]), account(['wrong'])) == (0, 1)


# -- dispenser

def reviewed(*events):
    """Return a history in which these events precede the other reviews."""
    names = {event.split()[2] for event in events}
    return [*events, *(
        f'{event} cid document-{number:02d}' for number in range(30)
        if f'document-{number:02d}' not in names
        for event in ('assigned', 'done'))]


DEAD = ('assigned bob document-00', 'died bob document-00',
        'assigned ann document-00', 'done ann document-00')


def test_the_account_of_the_dispenser_accepts_a_dead_reviewer():
    assert load('dispenser', 'review').account(reviewed(*DEAD)) == 0


@pytest.mark.parametrize(('history', 'found'), [
    (reviewed(DEAD[0], *DEAD[2:]),
     'document-00 was in the buckets of bob and ann'),
    (reviewed(*DEAD, DEAD[2]),
     'document-00 was assigned to ann after it was done'),
    (reviewed(*DEAD, DEAD[3]), 'document-00 was done twice'),
    (reviewed(*DEAD[:3], 'done cid document-00'),
     'cid reviewed document-00, which was in the bucket of ann'),
    (reviewed(*DEAD[:3]), 'document-00: not reviewed within 60 s')])
def test_the_account_of_the_dispenser_finds_a_wrong_history(
        history, found, capsys):
    assert load('dispenser', 'review').account(history) == 1
    assert found in capsys.readouterr().out


# -- redis_bus

@pytest.mark.parametrize(('ticks', 'runs', 'code', 'found'), [
    ((1, 2, 3), [(1, 8), (2, 9), (2, 8)], 0, '1 runs of the killed worker'),
    ((1, 2, 3), [(2, 8), (2, 9)], 1, 'WRONG: host ran 2 times for tick 2'),
    ((1, 2, 3), [(2, 9), (2, 8), (2, 8)], 1, 'WRONG: host ran 3 times'),
    ((1, 3), [], 1, 'WRONG: the ticks [2] are missing')])
def test_the_account_of_redis_finds_runs_that_were_not_lost(
        ticks, runs, code, found, capsys):
    begun = [(str(tick), 'host', pid) for tick, pid in runs]

    assert load('redis_bus').account(
        [str(tick) for tick in ticks], begun, victim=9) == code
    assert found in capsys.readouterr().out


# -- servers

@pytest.mark.parametrize(('example', 'given', 'missing'), [
    ('standby', 'BACKEND_URL', 'TRANSPORT_URL'),
    ('control', 'TRANSPORT_URL', 'BACKEND_URL'),
    ('redis_bus', 'BACKEND_URL', 'REDIS_URL')])
def test_an_example_names_a_server_that_is_missing(
        example, given, missing, monkeypatch, capsys):
    monkeypatch.setenv(given, 'redis://localhost')
    monkeypatch.delenv(missing, raising=False)

    assert load(example).main() == 2
    assert capsys.readouterr().err == (
        f'{missing} is not set; set it to the URL of a server, such as '
        'redis://localhost\n')


@pytest.mark.parametrize('example', ['provisioning', 'ordered_queue'])
def test_an_example_needs_all_servers_or_none(
        example, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(EXAMPLES / example)
    monkeypatch.setenv('CONNECTION', 'sqlite://')
    for name in ('BACKEND_URL', 'TRANSPORT_URL'):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(SystemExit) as ended:
        load(example).Group(tmp_path)

    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        'CONNECTION without the others; set all of BACKEND_URL, CONNECTION, '
        'TRANSPORT_URL, or none\n')
