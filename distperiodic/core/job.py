# SPDX-License-Identifier: Apache-2.0
"""What a decorated method asks for: a job, checked once, then immutable.

Every error here begins with where the job is defined, because the person who
reads it at start-up is rarely the one who wrote the decorator.
"""

import dataclasses
import enum
import functools
import re
import types
from typing import TypeVar

from distperiodic.core import due
from distperiodic.core.cron import Cron
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.core.schedule import Schedule
from distperiodic.core.schedule import finite_number
from distperiodic.exceptions import InvalidJob
from distperiodic.exceptions import InvalidSchedule

_Word = TypeVar('_Word', bound=enum.StrEnum)

#: A topic becomes the name of a queue and of a configuration section.
TOPIC = re.compile(r'[A-Za-z0-9._-]{1,100}')
_NAME_LENGTH = 200


class Scope(enum.StrEnum):
    """Where a tick of a job runs."""

    MEMBER = 'member'  # once on every member
    GROUP = 'group'  # once in the whole group
    OBJECTS = 'objects'  # once for each object of a catalogue


class Delivery(enum.StrEnum):
    """What happens to a run whose worker is lost."""

    AT_LEAST_ONCE = 'at_least_once'  # it runs again
    AT_MOST_ONCE = 'at_most_once'  # it is over


# How often, beyond its retries, a run is begun again whose worker was lost.
# A run that takes its worker down with it would else end all of them.
_LOSSES = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """One periodic job, the same on every member that loads the same code.

    Words may be given as text (``misfire='all'``); they are stored as members
    of their enum.

    :raises InvalidJob: an option has no legal value, or two contradict.
    """

    name: str
    schedule: Schedule
    scope: Scope = Scope.MEMBER
    objects: str | None = None  # the catalogue's method; None: no objects
    misfire: Misfire = Misfire.LATEST
    overlap: Overlap = Overlap.SKIP
    spread: bool = False
    retries: int = 0
    retry_backoff: float = 1.0  # seconds, before the first retry
    timeout: float | None = None  # seconds; None: a run may take for ever
    priority: int = 0  # higher first
    topic: str = 'default'  # the partition that runs it
    max_in_flight: int | None = None  # objects at once; None: no own limit
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    enabled: bool = True
    run_immediately: bool = False  # the first run is at start, not at a tick
    grace: float | None = None  # seconds; None: one period, at most 60
    defined_at: str = 'code'  # 'nodes.py:41'

    def __post_init__(self) -> None:
        if (
            not isinstance(self.name, str)
            or not 0 < len(self.name) <= _NAME_LENGTH
            or not self.name.isprintable()
        ):
            raise InvalidJob(
                f'{self.defined_at}: job name is {self.name!r}; give 1 to '
                f'{_NAME_LENGTH} printable characters'
            )
        self._check_scope()
        self._accept_word('misfire', Misfire)
        self._accept_word('overlap', Overlap)
        self._accept_word('delivery', Delivery)
        for option in ('spread', 'enabled', 'run_immediately'):
            self._check(option, type(getattr(self, option)) is bool, 'a bool')
        self._check(
            'retries', _whole(self.retries, 0), 'a whole number from 0'
        )
        self._check(
            'retry_backoff',
            _seconds(self.retry_backoff, zero=False),
            'seconds > 0',
        )
        self._check(
            'timeout',
            self.timeout is None or _seconds(self.timeout, zero=False),
            'seconds > 0, or None for no limit',
        )
        self._check('priority', _whole(self.priority), 'a whole number')
        self._check(
            'topic',
            isinstance(self.topic, str)
            and TOPIC.fullmatch(self.topic) is not None,
            'the name of a partition: 1 to 100 of A-Z a-z 0-9 . _ -',
        )
        self._check(
            'max_in_flight',
            self.max_in_flight is None or _whole(self.max_in_flight, 1),
            'a whole number from 1, or None for no own limit',
        )
        self._check(
            'grace',
            self.grace is None or _seconds(self.grace, zero=True),
            'seconds from 0, or None for one period, at most 60',
        )

    def tries_again(self, attempt: int) -> bool:
        """Whether a run that fails is followed by another attempt.

        :param attempt: of the run that failed, from 1.
        """
        return (attempt <= self.retries
                and self.delivery is not Delivery.AT_MOST_ONCE)

    @functools.cached_property
    def most_attempts(self) -> int:
        """After how many attempts of a tick a run that is lost is dead."""
        if self.delivery is Delivery.AT_MOST_ONCE:
            return 1
        return self.retries + _LOSSES + 1

    def plan(self, since: Instant = due.ALWAYS,
             own: Schedule | None = None) -> due.Plan:
        """When its objects are due, and what becomes of ticks that they miss.

        :param since: since when the job has its schedule.
        :param own: that of the objects which carry one of their own; it is
            in the rows since when they do. They have no phase.
        """
        if own is not None:
            return due.Plan(own, self.misfire, self.grace,
                            immediate=self.run_immediately)
        plan = self._plan
        if since == plan.since:
            return plan
        return dataclasses.replace(plan, since=since)

    @functools.cached_property
    def _plan(self) -> due.Plan:
        """As if it had its schedule for ever."""
        return due.Plan(self.schedule, self.misfire, self.grace, self.spread,
                        self.run_immediately)

    def schedule_text(self) -> str:
        """When its objects are due, as the store keeps it."""
        return self._schedule_text

    @functools.cached_property
    def _schedule_text(self) -> str:
        text = text_of(self.schedule)
        return f'{text} spread' if self.spread else text

    def _check_scope(self) -> None:
        self._accept_word('scope', Scope)
        self._check(
            'objects',
            self.objects is None
            or (isinstance(self.objects, str) and self.objects.isidentifier()),
            "the name of a method, as text: objects='list_nodes'",
        )
        if (self.objects is None) is (self.scope is Scope.OBJECTS):
            raise self._error(
                f'scope={self.scope.value!r} contradicts '
                f'objects={self.objects!r}; pass objects= alone for one run '
                'per object, or scope= alone'
            )

    def _accept_word(self, option: str, words: type[_Word]) -> None:
        value = getattr(self, option)
        try:
            word = words(value)
        except ValueError:
            legal = ', '.join(words)
            raise self._error(
                f'{option} is {value!r}; give one of {legal}'
            ) from None
        object.__setattr__(self, option, word)

    def _check(self, option: str, legal: bool, remedy: str) -> None:
        if not legal:
            raise self._error(
                f'{option} is {getattr(self, option)!r}; give {remedy}'
            )

    def _error(self, text: str) -> InvalidJob:
        return InvalidJob(f'{self.defined_at}: job {self.name!r}: {text}')


def own_schedule(obj: object) -> Schedule | None:
    """The schedule an object of a catalogue carries; None: its job's.

    It is a ``spacing`` (seconds), or a ``cron`` line with or without a
    ``timezone``; an attribute that is None counts as absent.

    :raises InvalidSchedule: naming the object.
    """
    spacing = getattr(obj, 'spacing', None)
    cron = getattr(obj, 'cron', None)
    if spacing is None and cron is None:
        return None
    try:
        return schedule_of(spacing, cron, getattr(obj, 'timezone', None))
    except InvalidSchedule as error:
        key = getattr(obj, 'id', obj)
        raise InvalidSchedule(f'object {key!r}: {error}') from None


def check_ended(name: str, returned: object) -> None:
    """See that a handler has done its work, and not promised to.

    :param returned: what it returned.
    :raises InvalidJob: it is a coroutine, whose body never ran.
    """
    # Its type and nothing else: isinstance() would ask the object itself,
    # and what a handler returns may be anything.
    if type(returned) is types.CoroutineType:
        returned.close()
        raise InvalidJob(
            f'job {name!r}: the handler returned a coroutine, which nothing '
            'awaits, so its body did not run; write it with def, or have a '
            'decorator run it')


def text_of(schedule: Schedule) -> str:
    """*schedule* as text, for a row of a store; see :func:`schedule_named`.

    Equal schedules have equal texts.
    """
    if isinstance(schedule, Cron):
        return f'cron {schedule.timezone} {schedule.line}'
    assert isinstance(schedule, Every)
    text = f'every {schedule.spacing_us}'
    return f'{text} {schedule.offset_us}' if schedule.offset_us else text


@functools.lru_cache(maxsize=4096)
def schedule_named(text: str) -> Schedule:
    """The schedule that :func:`text_of` wrote.

    :raises InvalidSchedule: it is nothing that it would write.
    """
    kind, _, rest = text.partition(' ')
    try:
        if kind == 'cron':
            timezone, _, line = rest.partition(' ')
            return _shared_cron(line, timezone)
        if kind == 'every':
            return Every(*(int(number) / SECOND for number in rest.split()))
    except (TypeError, ValueError):
        pass
    raise InvalidSchedule(
        f'the store has the schedule {text!r}, which this release cannot '
        'read; a newer one wrote it, so upgrade this process')


def schedule_of(
    spacing: float | None, cron: str | None, timezone: str | None
) -> Schedule:
    """The schedule that exactly one of *spacing* and *cron* describes.

    :param timezone: belongs to *cron*; None is UTC.
    :raises InvalidSchedule: both or none are given, or one has no ticks.
    """
    if spacing is not None and cron is not None:
        raise InvalidSchedule(
            f'spacing={spacing!r} and cron={cron!r} are both given; '
            'remove one of them'
        )
    if cron is not None:
        return _cron(cron, 'UTC' if timezone is None else timezone)
    if timezone not in (None, 'UTC'):
        raise InvalidSchedule(
            f'timezone={timezone!r} without cron=; a spacing counts from '
            'the epoch and knows no time zone, so remove timezone= or use '
            'cron='
        )
    return _every(spacing)


def _every(spacing: float | None) -> Every:
    try:
        return _shared_every(spacing)
    except TypeError:  # unhashable, so not a number; Every says so
        return Every(spacing)  # type: ignore[arg-type]


def _cron(line: str, timezone: str) -> Cron:
    try:
        return _shared_cron(line, timezone)
    except TypeError:  # unhashable, so not text; Cron says so
        return Cron(line, timezone)


# A catalogue of 100,000 objects has a handful of schedules. Typed, or True
# would be taken for a spacing of 1 that somebody else asked for.
_shared_every = functools.lru_cache(maxsize=4096, typed=True)(Every)
_shared_cron = functools.lru_cache(maxsize=4096, typed=True)(Cron)


def _seconds(value: object, *, zero: bool) -> bool:
    """Whether *value* is a finite duration, and 0 only where *zero*."""
    number = finite_number(value)
    return number is not None and (number > 0 or (zero and number == 0))


def _whole(value: object, low: int | None = None) -> bool:
    return type(value) is int and (low is None or value >= low)
