# SPDX-License-Identifier: Apache-2.0
"""The screen of ``distperiodic top``."""

import io

import pytest
from rich.console import Console

from distperiodic.cmd.top_screen import Screen
from distperiodic.cmd.top_screen import ScreenRow
from distperiodic.cmd.top_screen import Section
from distperiodic.cmd.top_screen import Snapshot
from distperiodic.cmd.top_screen import Wish
from distperiodic.operator.health import Finding
from distperiodic.operator.health import Severity

FINDING = Finding('task-stuck', Severity.FAILURE, None, 'task t1',
                  'it is stuck', 'distperiodic task retry t1')


def snapshot(objects=('h1', 'h2', 'h3'), findings=()):
    return Snapshot(1_000_000, "Group 'vm': 1 member", findings, [
        Section('Jobs', ('Job', 'Schedule'), [
            ScreenRow(('ping', 'every 2 s'))]),
        Section('Running', ('Job', 'Object', 'Worker'), [
            ScreenRow(('ping', one, f'worker of {one}'), ('ping', one))
            for one in objects], '', ('Job', 'Object'))])


def screen(*keys, shown=None):
    found = Screen()
    found.snapshot = shown or snapshot()
    for key in keys:
        assert found.press(key) is None
    return found


def drawn(found, width=80, height=24):
    """Return the lines of the picture, without trailing blanks."""
    output = io.StringIO()
    Console(file=output, width=width, height=height).print(
        found.draw(width, height))
    return [line.rstrip() for line in output.getvalue().splitlines()]


@pytest.mark.parametrize(('height', 'findings'), [
    (24, ()), (12, ()), (24, 3 * (FINDING,)), (40, 9 * (FINDING,))])
@pytest.mark.parametrize('width', [40, 80, 200])
def test_the_picture_fits_the_terminal(width, height, findings):
    many = snapshot([f'object-{n}' for n in range(100)], findings)

    lines = drawn(screen(shown=many), width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_each_finding_has_its_remedy():
    text = '\n'.join(drawn(screen(shown=snapshot(findings=[FINDING]))))

    assert 'failure task-stuck: task t1: it is stuck' in text
    assert 'do: distperiodic task retry t1' in text


def test_the_title_of_a_cut_list_has_the_number_of_its_rows():
    many = snapshot([f'object-{n}' for n in range(100)])

    lines = drawn(screen(shown=many))

    [title] = [line for line in lines if line.startswith('Running')]
    shown = sum('object-' in line for line in lines)
    assert title == f'Running ({shown} of 100)'


def test_a_narrow_terminal_shows_the_essential_columns():
    lines = drawn(screen(), width=40)

    assert any(line.split() == ['Job', 'Object', 'Worker'] for line in lines)
    lines = drawn(screen(shown=snapshot(['a' * 20])), width=40)
    assert any(line.split() == ['Job', 'Object'] for line in lines)


def test_a_filter_hides_the_rows_without_its_text():
    found = screen('/', 'H', '2')

    text = '\n'.join(drawn(found))

    assert 'h2' in text
    assert 'h1' not in text and 'every 2 s' not in text
    assert 'filter: H2' in text


def test_a_filter_may_contain_the_letters_of_keys():
    assert screen('/', 'q', ' ', 'j').filter == 'q j'
    assert screen('/', 'q', 'backspace', 'k').filter == 'k'
    assert screen('/', 'q', 'enter', 'j').filter == 'q'
    assert screen('/', 'q', 'escape').filter == ''


def test_keys_select_an_object_and_ask_about_it():
    found = screen('down', 'j', 'down', 'up')

    assert found.selected == ('ping', 'h2')
    assert found.press('enter') is Wish.ANSWER


def test_the_selected_row_is_shown_even_if_the_list_is_cut():
    many = snapshot([f'object-{n:02}' for n in range(100)])

    assert 'object-00' in '\n'.join(drawn(screen(shown=many)))
    text = '\n'.join(drawn(screen(*['down'] * 60, shown=many)))
    assert 'object-60' in text and 'object-00' not in text


def test_the_selected_object_stays_selected_when_its_row_moves():
    found = screen('down')

    found.snapshot = snapshot(['h0', 'h1', 'h3', 'h2'])

    assert found.selected == ('ping', 'h2')
    assert screen_after_loss(found) == ('ping', 'h1')


def screen_after_loss(found):
    """Return what is selected after the selected object has gone."""
    found.snapshot = snapshot(['h0', 'h1'])
    return found.selected


def test_nothing_is_asked_if_no_row_names_an_object():
    found = screen('/', 'e', 'v', 'e', 'r', 'y', 'enter', 'down')

    assert found.selected is None
    assert found.press('enter') is None


def test_any_key_leaves_the_account_of_an_object():
    found = screen()
    found.answer = {'answer': 'it ran\nat noon'}
    assert drawn(found)[:2] == ['answer  it ran', '        at noon']

    assert found.press('q') is None
    assert found.answer is None
    assert found.press('q') is Wish.QUIT


def test_an_id_cannot_send_an_escape_sequence_to_the_terminal():
    found = screen(shown=snapshot(['\x1b[31m\u202eh1']))
    found.answer = {'object': '\x1b[31m'}

    assert '\x1b' not in '\n'.join(drawn(found))
    found.press('x')
    text = '\n'.join(drawn(found))
    assert '\x1b' not in text and '\u202e' not in text
    assert '\\x1b[31m\\u202eh1' in text


def test_a_paused_screen_is_marked():
    assert 'paused' in drawn(screen(' '))[-1]
    assert 'paused;' not in drawn(screen(' ', ' '))[-1]
