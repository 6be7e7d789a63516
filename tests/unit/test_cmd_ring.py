# SPDX-License-Identifier: Apache-2.0
"""The output of the ring commands agrees with the ring itself."""

import hashlib
import json

import pytest

from distperiodic.cmd import ring as ring_cmd
from distperiodic.cmd import shell
from distperiodic.core.ring import MAX_POSITION
from distperiodic.core.ring import MIN_POSITION
from distperiodic.core.ring import Ring
from distperiodic.core.ring import position_of


@pytest.fixture(autouse=True)
def no_configuration_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))


def ask(capsys, *argv):
    assert shell.main([*argv, '-f', 'json']) == 0
    return json.loads(capsys.readouterr().out)


def test_explain_names_the_owner_that_the_ring_has(capsys):
    ring = Ring({'a': 40, 'b': 80, 'c': 40})
    for number in range(50):
        told = ask(capsys, 'ring', 'explain', 'ping', f'host-{number}',
                   '--members', 'a,b=80,c')
        owner = ring.owner_of(f'host-{number}')
        assert told['owner'] == owner
        digest = hashlib.md5(
            f'host-{number}'.encode(), usedforsecurity=False).hexdigest()
        assert told['position'] == digest[:16]
        # The point's position is the digest of the name in the text.
        name = told['because'].split("md5('")[2].partition("'")[0]
        assert name.partition(':')[0] == owner
        assert hashlib.md5(name.encode(), usedforsecurity=False
                           ).hexdigest()[:16] == told['point']
        successors = [m for _, m in ring.succession(
            position_of(f'host-{number}'))]
        assert told['successors'].startswith(', '.join(successors[1:]))


def test_explain_places_a_job_without_objects_by_its_name(capsys):
    told = ask(capsys, 'ring', 'explain', 'nightly', '--members', 'a,b,c')

    assert told['owner'] == Ring(
        {'a': 40, 'b': 40, 'c': 40}).owner_of('nightly')


def test_show_gives_every_member_its_share(capsys):
    told = ask(capsys, 'ring', 'show', '--members', 'a,b=80,c')

    assert [row['member'] for row in told] == ['a', 'b', 'c']
    assert [row['points'] for row in told] == [40, 80, 40]
    assert sum(row['share'] for row in told) == pytest.approx(1)
    assert [row['fair'] for row in told] == [0.25, 0.5, 0.25]


def test_the_arcs_cover_every_position_once(capsys):
    told = ask(capsys, 'ring', 'show', '--arcs', '--members', 'a,b,c')

    assert told[0]['low'] == MIN_POSITION
    assert told[-1]['high'] == MAX_POSITION
    for one, next_one in zip(told, told[1:], strict=False):
        assert next_one['low'] == one['high'] + 1


@pytest.mark.parametrize('members', [
    'a,,b', 'a,a', 'a=0', 'a=x', 'a=10001', 'a/b', '', 'ä'])
def test_members_that_cannot_be_are_one_line(members, capsys):
    assert shell.main(['ring', 'show', f'--members={members}']) == 2

    told = capsys.readouterr().err
    assert told.count('\n') == 1


def test_points_default_to_the_option(capsys, tmp_path):
    config = tmp_path / 'a.conf'
    config.write_text('[distperiodic]\nhash_ring_replicas_count = 64\n')

    shown = ask(capsys, 'ring', 'show', '--members', 'a,b',
                '--config-file', str(config))
    simulated = ask(capsys, 'ring', 'simulate', '--objects', '100',
                    '--config-file', str(config))

    assert {row['points'] for row in shown} == {64}
    assert simulated['replicas'] == 64


def test_a_simulated_change_moves_no_more_than_it_must():
    told = ring_cmd.Simulation(10, 40, 20_000)

    assert told.join_moves == told.join_needs > 0
    assert told.leave is not None
    moved, needed, between = told.leave
    assert moved == needed == told.most
    assert told.join_between == between == 0


def test_simulated_loads_are_those_of_the_ring():
    told = ring_cmd.Simulation(5, 40, 5_000)
    ring = Ring({f'member-{n}': 40 for n in range(1, 6)})
    loads = [0] * 5
    for number in range(5_000):
        loads[int(ring.owner_of(f'object-{number}')[7:]) - 1] += 1

    assert told.most == max(loads)
    assert told.least == min(loads)
    assert told.mean == 1_000


def test_an_uneven_ring_is_reported_with_the_number_of_points_to_set():
    told = ring_cmd.Simulation(100, 40, 10_000)

    assert told.advised > 40
    assert f'hash_ring_replicas_count = {told.advised}' in told.advice()
    # With twice the advised number of points, there is no further advice.
    assert ring_cmd.Simulation(
        100, told.advised * 2, 10_000).advice().startswith('nothing')


def test_a_single_member_leaves_no_member_when_it_leaves():
    told = ring_cmd.Simulation(1, 40, 100)

    assert told.leave is None
    assert told.words()['a leave'] == (
        'no member is left')
    assert told.figures()['leave_moves'] is None


def test_a_simulation_that_would_take_minutes_is_refused(capsys):
    assert shell.main(['ring', 'simulate', '--members', '100000',
                       '--replicas', '1000']) == 2
    assert 'would take minutes' in capsys.readouterr().err
