# SPDX-License-Identifier: Apache-2.0
"""Commands of operators on jobs, as one scheduler carries them out.

With a store, a command is in the store before a scheduler learns of the
command. The scheduler then reads the store, and confirms the new state.
Without a store, the scheduler executes the command itself. A pause then exists
only in the memory of the scheduler's process, and a trigger runs only the
objects that the scheduler owns.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from distperiodic.core.control import MemberOutcome
from distperiodic.core.control import Verb
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.scheduler.tick import Ticker

NOT_SERVED = MemberOutcome(True, 'it does not schedule this job')

# Maximum number of jobs or partitions in an answer.
_LISTED = 9


class JobOrders:
    """Commands on the jobs of one book.

    :param jobs: The jobs of the book, by name.
    """

    def __init__(self, jobs: Mapping[str, Job], *, attendance: Attendance,
                 ticker: Ticker, dispatcher: Dispatcher):
        self._jobs = jobs
        self._attendance = attendance
        self._ticker = ticker
        self._dispatcher = dispatcher

    @property
    def paused(self) -> list[str]:
        """Names of the jobs that are paused in this process only."""
        return self._attendance.volatile

    # -- with a store

    def confirm(self, verb: str, job: str, arguments: Mapping[str, Any],
                then: Callable[[MemberOutcome], None]) -> None:
        """Apply a command that is in the store.

        :param arguments: For a trigger, ``tick`` is the tick of the triggered
            runs. For any other command, ``objects`` are the objects of the job
            to which it applies. If they are missing, it applies to the job.
        :param then: Called with the answer when the store has been read. The
            answer waits while the store is unreachable.
        """
        tick = arguments.get('tick')
        if verb == Verb.TRIGGER and job in self._jobs:
            self._dispatcher.search(
                job, tick if type(tick) is int else 0,
                lambda number: then(_taken_over(number)))
        elif verb != Verb.TRIGGER and self._attendance.serves(job):
            self._attendance.read_again(
                lambda: then(self._confirmed(verb, job, arguments)))
        else:
            then(NOT_SERVED)

    def _confirmed(self, verb: str, job: str,
                   arguments: Mapping[str, Any]) -> MemberOutcome:
        pauses = verb == Verb.PAUSE
        keys, until = arguments.get('objects'), arguments.get('until')
        if isinstance(keys, list):
            held = self._attendance.paused_objects(job)
            states = {key in held for key in keys}
        else:
            states = {self._attendance.paused(job) is not None}
        if pauses and type(until) is int and self._attendance.is_over(until):
            return MemberOutcome(True, 'the pause has ended already')
        if states - {pauses}:
            return MemberOutcome(
                False, 'a later command has replaced this one')
        if not pauses:
            return MemberOutcome(True, 'resumed')
        return self._paused([job], keys)

    def _paused(self, jobs: list[str],
                keys: list[str] | None = None) -> MemberOutcome:
        """Return the answer to a pause.

        :param keys: The paused objects. None means all objects of the jobs.
        """
        left = sum(len(found if keys is None else found.intersection(keys))
                   for found in map(self._dispatcher.objects, jobs))
        return MemberOutcome(True, f'paused; {left} in flight')

    # -- without a store

    def execute(self, verb: str, arguments: Mapping[str, Any],
                why: str) -> MemberOutcome:
        """Execute a command that came over the bus.

        :param arguments: ``job``, the name of a job, or ``topic``, the topic
            of several jobs. If both are missing, the command applies to all
            jobs. A trigger needs ``job``, and may have ``object``, the id of
            an object.
        """
        found = self._selected(arguments)
        if isinstance(found, str):
            return MemberOutcome(False, found)
        if verb == Verb.TRIGGER:
            return self._trigger(arguments)
        for name in found:
            if verb == Verb.PAUSE:
                self._attendance.set_paused(name, why)
        if verb == Verb.PAUSE:
            return self._paused(found)
        if not any([self._attendance.set_paused(name, None)
                    for name in found]):
            return MemberOutcome(True, 'it was not paused here')
        return MemberOutcome(True, 'resumed')

    def _selected(self, arguments: Mapping[str, Any]) -> list[str] | str:
        """Return the names of jobs, or the reason why there are none."""
        job, topic = arguments.get('job'), arguments.get('topic')
        able = {name: one for name, one in self._jobs.items()
                if self._attendance.serves(name)
                and one.scope is not Scope.MEMBER}
        if job is not None:
            if job in able:
                return [job]
            if job in self._jobs:
                return (f'job {job!r} is disabled, or each member runs it for '
                        "itself (scope 'member')")
            return f'it has no job {job!r:.300}; ' + _those(able)
        found = sorted(name for name, one in able.items()
                       if topic in (None, one.topic))
        return found or (
            'it has no job' if topic is None else
            f'it has no job of partition {topic!r:.300}; '
            + _those({one.topic for one in able.values()}))

    def _trigger(self, arguments: Mapping[str, Any]) -> MemberOutcome:
        job, key = arguments.get('job'), arguments.get('object')
        if job is None:
            return MemberOutcome(False, 'no job is named')
        found = self._ticker.trigger(job, key)
        if isinstance(found, str):
            return MemberOutcome(False, found)
        won, busy = found
        text = _claimed(won)
        if busy:
            text += f', left out {busy} whose earlier tick has not ended'
        if key is not None and not (won or busy):
            if not self._ticker.may_list(job, key):
                return MemberOutcome(False, (
                    f'its catalogue does not list object {key!r:.300}'))
            text = 'it does not own this object'
        return MemberOutcome(True, text)


def _those(names: Any) -> str:
    some = sorted(names)[:_LISTED]
    more = len(names) - len(some)
    return f'it has {", ".join(some) or "none"}' + (
        f' and {more} more' if more else '')


def _taken_over(number: int | None) -> MemberOutcome:
    return MemberOutcome(True, (
        'it claims nothing, because it is drained or stopping'
        if number is None else _claimed(number)))


def _claimed(number: int) -> str:
    return f'claimed {number} {"object" if number == 1 else "objects"}'
