# SPDX-License-Identifier: Apache-2.0
"""The pages of a job and of an object."""

import argparse
import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import audit
from distperiodic.core import catalogue
from distperiodic.core import wording
from distperiodic.operator import exception_map
from distperiodic.operator import filters
from distperiodic.operator import health
from distperiodic.operator import object_account
from distperiodic.operator.activity import Failing
from distperiodic.operator.activity import Ticked
from distperiodic.operator.exception_map import PARTS
from distperiodic.operator.exception_map import ExceptionMap
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.lists import dead_list
from distperiodic.operator.lists import job_list
from distperiodic.operator.lists import run_list
from distperiodic.operator.lists import tick_list
from distperiodic.operator.object_account import LETTERS
from distperiodic.operator.queries import Object
from distperiodic.web.list_pages import job_links
from distperiodic.web.page import Button
from distperiodic.web.page import NotFound
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import read_list
from distperiodic.web.page import read_part
from distperiodic.web.page import record
from distperiodic.web.query_filters import BadFilter
from distperiodic.web.query_filters import Incomplete

# Number of ticks in the row of ticks, of next ticks, and of rows of the lists.
_TICKS, _NEXT, _ROWS = 60, 5, 20
# Maximum number of failing objects that are grouped by their errors.
_FAILING = 500
# Maximum number of longest runs that are shown.
_SLOWEST = 5
# Seconds of history that are read if the period of a job is unknown.
_DAY = 86400.0


# Classes in the style sheet, by letter.
_KINDS = {'.': 'good', 'l': 'late', 'F': 'dead', 'L': 'lost', 'S': 'late',
          '-': 'skipped', 'x': 'skipped', 'n': 'lost', 'o': 'open'}


class MapLine(NamedTuple):
    """One line of the map of exceptions."""

    name: str
    #: Address of the object. None means a part of the ring.
    address: str | None
    beats: Sequence['Beat']


class Beat(NamedTuple):
    """One tick in the row of ticks."""

    #: Class in the style sheet, and the letter for readers without colours.
    kind: str
    letter: str
    text: str


class ErrorGroup(NamedTuple):
    """Failing objects with the same error."""

    error: str
    number: int
    #: Ids of some of the objects.
    examples: Sequence[str]
    #: Instant of the newest failure.
    last: str
    buttons: Sequence[Button]


class Moment(NamedTuple):
    """A known instant in the life of an object."""

    at: str
    what: str
    detail: str
    state: str


def job(request: PageRequest, job: str) -> Page:
    """Return the page of a job."""
    store = request.sources.store
    jobs = {one.name: one for one in store.jobs()}
    if job not in jobs:
        raise NotFound(
            f'group {request.sources.settings.group!r} has no job {job!r} in '
            'its database; the page of jobs lists those that schedulers have '
            'recorded')
    stored, now = jobs[job], store.now()
    declared = job_list.Jobs()
    listed = read_list(request, declared, job_links(request))
    row = next(one for one in listed.data or () if one['job'] == job)
    period = audit.period_of(stored.schedule, now)
    window = (_DAY if period is None else 1.5 * _TICKS * period / 1e6) + 5
    history = read_part(
        request, tick_list.Ticks(), {}, job,
        given=[('since', f'{window:.0f}s'), ('limit', str(_TICKS))])
    running = read_part(
        request, run_list.Runs(), _object_links(request), job,
        given=[('limit', str(_ROWS))])
    dead = read_part(
        request, dead_list.DeadObjects(), _object_links(request), job,
        given=[('limit', str(_FAILING))])
    for table in history, running, dead:
        table.hidden = 'Job', 'Slowest object'
    history.without_zeros = True
    found = health.concerning(
        health.findings(request.sources.facts()), job)
    found_map = _read_map(
        store, job, [one.tick for one in reversed(history.found)])
    return Page(job, 'job.html', {
        'job': row, 'beats': [_beat(one, period) for one in reversed(
            history.found)],
        'lines': _map_lines(request, job, found_map),
        'left_out': _map_sentence(found_map),
        'next': job_list.next_ticks(stored, now, _NEXT),
        'history': history, 'running': running, 'dead': dead,
        'errors': _by_error(request, job, dead.found), 'findings': found,
        'about': {one.about: request.addresses.about(one.about, [job])
                  for one in found},
        'slowest': _slowest(history.found), 'moment': wording.second,
        'at': wording.second(now)}, {
            'job': row, 'next_ticks': job_list.next_ticks(
                stored, now, _NEXT),
            'findings': [one.shown for one in found],
            'ticks': history.data, 'exceptions': _map_data(found_map),
            'running': running.data, 'failing': dead.data}, 'jobs', [
                *request.button('job resume' if stored.paused_since
                                else 'job pause', job=job),
                *request.button('job trigger', 'Run all objects now',
                                job=job),
                *(request.button('dead requeue', 'Requeue all dead objects',
                                 job=job)
                  if any(map(_is_dead, dead.found)) else [])])


def _object_links(request: PageRequest) -> Mapping[str, Any]:
    return {'Object': lambda row: request.addresses.object(
        row['Job'], row['Object'])}


def _beat(tick: Ticked, period: int | None) -> Beat:
    """Return a tick as a mark: the worst that has happened to an object."""
    counts = tick.counts
    late = tick.late.max if tick.late.count else None
    kind, letter = (
        ('lost', 'L') if counts.by_lost else
        ('dead', 'F') if counts.dead and not counts.done else
        ('some', 'f') if counts.dead else
        ('late', 'S') if counts.superseded else
        ('late', 'l') if period and late is not None and late > period else
        ('open', 'o') if counts.open else
        ('skipped', '-') if counts.skipped and not counts.done else
        ('good', '.'))
    parts = [f'{number:,} {word}' for number, word in (
        (counts.done, 'done'), (counts.dead, 'failed'),
        (counts.by_lost, 'lost'), (counts.superseded, 'superseded'),
        (counts.skipped - counts.by_lost, 'skipped'), (counts.open, 'open'))
        if number > 0]
    text = f'{wording.second(tick.tick)}: {", ".join(parts) or "nothing due"}'
    if late is not None:
        text += f'; at most {late / 1e6:.1f} s late'
    return Beat(kind, letter, text)


def _slowest(ticks: Sequence[Ticked]) -> list[Ticked]:
    """Return the ticks with the longest runs, one for each object.

    The object of some runs is unknown, because they were short.
    """
    found: dict[str | int, Ticked] = {}
    for one in sorted(ticks, key=lambda one: -one.ran.max):
        if one.ran.count:
            found.setdefault(one.slowest or one.tick, one)
    return list(found.values())[:_SLOWEST]


def _read_map(store: GroupReader, job: str,
              ticks: Sequence[int]) -> ExceptionMap | str:
    """Return the exceptions of some ticks, or the reason why they cannot be
    read now.

    :param ticks: The ticks, the oldest first.
    """
    try:
        return exception_map.read(store, job, ticks)
    except exceptions.StoreUnavailable as exc:
        return wording.one_line(exc)


def _map_lines(request: PageRequest, job: str,
               found: ExceptionMap | str) -> list[MapLine]:
    """Return the lines of the map of exceptions: objects, and parts of the
    ring if there are more objects.
    """
    if isinstance(found, str):
        return []
    lines = [MapLine(row.object, request.addresses.object(job, row.object), [
        _mark('' if reason is None else LETTERS.get(reason, '?'),
              f'{wording.second(tick)}: '
              f'{reason.value if reason else "no exception"}')
        for tick, reason in zip(found.ticks, row.reasons, strict=True)])
        for row in found.objects]
    return lines + [MapLine(f'{at + 1} of {PARTS} of the ring', None, [
        Beat('some' if number else 'none', f'{min(number, 99) or ""}',
             f'{wording.second(tick)}: '
             f'{wording.plural(number, "object")}')
        for tick, number in zip(found.ticks, part, strict=True)])
        for at, part in enumerate(found.parts)]


def _map_data(found: ExceptionMap | str) -> dict[str, Any] | None:
    """Return the map of exceptions for programs."""
    return None if isinstance(found, str) else {
        'objects': [{'object': row.object, 'ticks': {
            wording.moment(tick): reason.value
            for tick, reason in zip(found.ticks, row.reasons, strict=True)
            if reason}} for row in found.objects],
        'number': found.number, 'parts': found.parts,
        'unknown': found.unknown}


def _mark(letter: str, text: str) -> Beat:
    return Beat(_KINDS.get(letter, 'none'), letter, text)


def _map_sentence(found: ExceptionMap | str) -> str:
    """Return a sentence about what the map leaves out."""
    if isinstance(found, str):
        return f'This part cannot be read now: {found}.'
    return ' '.join(filter(None, [
        f'The worst {len(found.objects)} of {found.number:,} objects, and all '
        f'of them by {PARTS} parts of the ring.' if found.parts else '',
        f'{found.unknown:,} more outcomes of objects whose ids were not kept '
        'or not read.' if found.unknown else '']))


def _by_error(request: PageRequest, job: str,
              failing: Sequence[Failing]) -> list[ErrorGroup]:
    """Return the failing objects by their errors, the most frequent first."""
    def buttons(some: Sequence[Failing]) -> Sequence[Button]:
        errors = {one.error for one in some}
        return [] if len(errors) > 1 or not any(errors) or not any(
            map(_is_dead, some)) else request.button(
                'dead requeue', 'Requeue these', job=job, error=errors.pop())
    groups: dict[str, list[Failing]] = collections.defaultdict(list)
    for one in failing:
        groups[wording.one_line(one.error)].append(one)
    return sorted((ErrorGroup(
        error, len(some), [one.object for one in some[:5]],
        wording.second(max(one.at for one in some)), buttons(some))
        for error, some in groups.items()), key=lambda one: -one.number)


def _is_dead(failing: Failing) -> bool:
    """Return whether no later tick of an object is claimed yet."""
    return failing.state.value == 'dead'


def chosen_object(request: PageRequest, job: str) -> Page:
    """Return the page of the object in the query string."""
    key = request.value('object')
    if not key:
        raise Incomplete('no object is named; give ?object=ID')
    return object_page(request, job, key)


def object_page(request: PageRequest, job: str, key: str) -> Page:
    """Return the page of an object: the answer of ``distperiodic why``."""
    at = None
    if request.value('at'):
        try:
            at = filters.since(request.value('at'))
        except argparse.ArgumentTypeError as exc:
            raise BadFilter(f'filter at: {exc}') from exc
    try:
        key = catalogue.id_of(key)
    except exceptions.InvalidObject as exc:
        raise NotFound(f'{key!r} cannot be the id of an object') from exc
    found = object_account.account(request.sources, job, key, at)
    if found.found.job is None:
        raise NotFound(str(found.facts['answer']))
    if found.found.claim is None:
        raise NotFound(
            f'object {key!r} of job {job!r}: {found.facts["answer"]}')
    fields = {'job': job, 'object': key, **found.fields(False)}
    facts = {name: value for name, value in found.fields(True).items()
             if name not in ('answer', 'reason', 'findings', 'last ticks')
             and value not in ('', None)}
    return Page(key, 'object.html', {
        'job': job, 'key': key, 'answer': found.facts['answer'],
        'reason': found.facts['reason'], 'facts': facts,
        'findings': found.findings or [],
        'beats': [_mark(one.letter, f'{wording.second(one.tick)}: {one.shown}')
                  for one in reversed(found.ticks)],
        'timeline': _timeline(found.found, found.facts)},
        record(fields), 'jobs', [
            *request.button('job pause' if found.found.pause is None
                            else 'job resume', job=job, object=key),
            *request.button('job trigger', job=job, object=key),
            *(request.button('dead requeue', job=job, object=key)
              if found.found.claim.state.value == 'dead' else [])])


def _timeline(found: Object, facts: Mapping[str, Any]) -> list[Moment]:
    """Return what the store knows about an object, the newest first."""
    claim = found.claim
    assert claim is not None
    steps: list[tuple[int, Moment]] = []

    def add(at: int | None, what: str, detail: str = '',
            state: str = '') -> None:
        if at is not None:
            steps.append((at, Moment(
                wording.second(at), what, detail, state)))
    for one in found.failed:
        add(one.tick, 'tick failed for good',
            f'attempt {one.attempt}'
            + (f' on {one.worker}' if one.worker else '')
            + f': {wording.one_line(one.error)}', 'dead')
    failed = {one.tick for one in found.failed}
    if found.previous is not None and found.previous not in failed:
        add(found.previous, 'tick before')
    if claim.tick not in failed or claim.state.value != 'dead':
        add(claim.tick, 'last tick', ', '.join(filter(None, [
            f'attempt {found.attempt}' if found.attempt else '',
            f'on {found.worker}' if found.worker else '',
            f'fence {found.fence}'])), claim.state.value)
    if claim.skipped and claim.skipped_by:
        add(claim.settled, f'skipped by {claim.skipped_by.value}',
            found.skip_reason, 'skipped')
    add(found.served, 'last success', '', 'done')
    add(claim.since, 'listed in the catalogue')
    following = facts.get('next tick')
    steps.sort(key=lambda one: -one[0])
    ahead = [Moment(str(following), 'next tick', '', '')] if following else []
    return ahead + [step for _, step in steps]
