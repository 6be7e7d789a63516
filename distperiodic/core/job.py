# SPDX-License-Identifier: Apache-2.0
"""Jobs: the validated, immutable form of decorated methods.

Each error message of :class:`Job` begins with the file and line that define
the job, because the operator who starts a service is rarely the author of its
jobs.
"""

import dataclasses
import enum
import functools
import re
import types
from typing import TypeVar

from distperiodic.core import due
from distperiodic.core.cron import Cron
from distperiodic.core.schedule import LAST_INSTANT
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

#: Legal topics. A topic becomes part of queue names, and of section names in
#: the configuration.
TOPIC = re.compile(r'[A-Za-z0-9._-]{1,100}')
_NAME_LENGTH = 200
#: Prefix of the names of jobs that stand for commands. The name of a periodic
#: job never begins with it.
COMMAND_PREFIX = 'task:'
#: A number of retries that no command reaches. As a limit, it has no effect.
MAX_RETRIES = 2 ** 30


class Scope(enum.StrEnum):
    """Scope of a job: the places where each tick runs."""

    MEMBER = 'member'  # once on every scheduler
    GROUP = 'group'  # once in the whole group
    OBJECTS = 'objects'  # once for each object of a catalogue
    TASK = 'task'  # never; a command runs when a task reaches its step


class Delivery(enum.StrEnum):
    """Policy for a run whose worker is lost."""

    AT_LEAST_ONCE = 'at_least_once'  # it runs again
    AT_MOST_ONCE = 'at_most_once'  # it does not run again


# Number of attempts, in addition to the retries, of a run whose workers are
# lost. Without this limit, a run that kills its worker would eventually kill
# all workers.
_LOSSES = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """One periodic job.

    The job is the same on all members that load the same code. The constructor
    accepts the text of an enum option (``misfire='all'``), and stores the
    member of the enum.

    :raises InvalidJob: An option has an illegal value, or two options
        contradict each other.
    """

    name: str
    schedule: Schedule
    scope: Scope = Scope.MEMBER
    objects: str | None = None  # the catalogue method; None means no objects
    misfire: Misfire = Misfire.LATEST
    overlap: Overlap = Overlap.SKIP
    spread: bool = False
    retries: int = 0
    retry_backoff: float = 1.0  # seconds until the first retry
    timeout: float | None = None  # seconds; None means no limit
    priority: int = 0  # higher first
    topic: str = 'default'  # the partition that runs it
    max_in_flight: int | None = None  # concurrent objects; None means no limit
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    enabled: bool = True
    run_immediately: bool = False  # first run at once, later runs at ticks
    grace: float | None = None  # seconds; None means min(period, 60)
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
        if self.name.startswith(COMMAND_PREFIX) is not (
                self.scope is Scope.TASK):
            raise self._error(
                f'scope is {self.scope.value!r}; a name with the prefix '
                f'{COMMAND_PREFIX!r} is reserved for commands, and only '
                f'commands have the scope {Scope.TASK.value!r}'
            )
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
            'the name of a partition: 1 to 100 characters from A-Z a-z 0-9 '
            '. _ -',
        )
        self._check(
            'max_in_flight',
            self.max_in_flight is None or _whole(self.max_in_flight, 1),
            'a whole number from 1, or None for no limit',
        )
        self._check(
            'grace',
            self.grace is None or _seconds(self.grace, zero=True),
            'seconds from 0, or None for one period, at most 60',
        )

    def tries_again(self, attempt: int) -> bool:
        """Return whether a failed run is retried.

        :param attempt: Number of the attempt that failed, from 1.
        """
        return (attempt <= self.retries
                and self.delivery is not Delivery.AT_MOST_ONCE)

    @functools.cached_property
    def most_attempts(self) -> int:
        """Maximum number of attempts at a tick.

        If the worker of the last attempt is lost, the claim becomes dead.
        """
        if self.delivery is Delivery.AT_MOST_ONCE:
            return 1
        return self.retries + _LOSSES + 1

    def plan(self, since: Instant = due.ALWAYS,
             own: Schedule | None = None) -> due.Plan:
        """Return the plan of objects that follow one schedule.

        :param since: Instant since which the job has had its schedule. The
            method ignores *since* if *own* is given, because the row of each
            such object records the instant from which the object follows its
            schedule.
        :param own: The objects' own schedule. Such objects have no phase. None
            means that the objects follow the schedule of the job.
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
        """Plan of a job that has always had this schedule."""
        return due.Plan(self.schedule, self.misfire, self.grace, self.spread,
                        self.run_immediately)

    def schedule_text(self) -> str:
        """Return the text by which the store identifies the schedule.

        The text also states whether the job has ``spread``.
        """
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


class _Never:
    """A schedule without ticks."""

    def after(self, t: Instant) -> Instant:
        return LAST_INSTANT

    def at_or_before(self, t: Instant) -> Instant | None:
        return None

    def period_us(self, tick: Instant) -> int:
        return LAST_INSTANT

    def count(self, after: Instant, until: Instant) -> int:
        return 0

    def describe(self) -> str:
        return 'never'


def command_job(module: str, command: str, defined_at: str) -> Job:
    """Return the job for the claims of a command.

    The job has no timeout, and its limit on attempts has no effect. The
    workflow of each task sets both.
    """
    return Job(f'{COMMAND_PREFIX}{module}.{command}', _Never(), Scope.TASK,
               topic=module, retries=MAX_RETRIES, defined_at=defined_at)


def own_schedule(obj: object) -> Schedule | None:
    """Return an object's own schedule, if it has one.

    The object may have an attribute ``spacing`` (seconds), or an attribute
    ``cron`` and optionally ``timezone``. An attribute with the value None
    counts as missing.

    :returns: The schedule. None means that the schedule of the job applies.
    :raises InvalidSchedule: The attributes form no valid schedule. The message
        names the object.
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
    """Check that a handler returned no coroutine.

    :param returned: The value that the handler returned.
    :raises InvalidJob: The value is a coroutine, so the body of the handler
        was not executed.
    """
    # Compare the exact type: isinstance() also reads the attribute __class__,
    # which any object can override.
    if type(returned) is types.CoroutineType:
        returned.close()
        raise InvalidJob(
            f'job {name!r}: the handler returned a coroutine, which nothing '
            'awaits, so its body did not run; write it with def, or add a '
            'decorator that runs it')


def text_of(schedule: Schedule) -> str:
    """Return the text by which the store identifies *schedule*.

    Equal schedules have equal texts. :func:`schedule_named` converts the text
    back to the schedule.
    """
    if isinstance(schedule, Cron):
        return f'cron {schedule.timezone} {schedule.line}'
    assert isinstance(schedule, Every)
    text = f'every {schedule.spacing_us}'
    return f'{text} {schedule.offset_us}' if schedule.offset_us else text


@functools.lru_cache(maxsize=4096)
def schedule_named(text: str) -> Schedule:
    """Return the schedule for a text that :func:`text_of` returned.

    :raises InvalidSchedule: *text* is not in the format of :func:`text_of`, or
        names a time zone that is unknown to this process.
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
        f'the store has the schedule {text!r}, which this process cannot '
        'read; upgrade distperiodic and the tz database of this process')


def schedule_of(
    spacing: float | None, cron: str | None, timezone: str | None
) -> Schedule:
    """Return the schedule for either *spacing* or *cron*.

    :param timezone: Time zone of *cron*. None means UTC.
    :raises InvalidSchedule: *spacing* and *cron* are both given or both
        missing, one of the arguments is invalid, the schedule has no ticks, or
        a *timezone* other than UTC is given without *cron*.
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
            'the epoch and has no time zone, so remove timezone= or use '
            'cron='
        )
    return _every(spacing)


def _every(spacing: float | None) -> Every:
    try:
        return _shared_every(spacing)
    except TypeError:  # unhashable, so not a number: Every rejects it
        return Every(spacing)  # type: ignore[arg-type]


def _cron(line: str, timezone: str) -> Cron:
    try:
        return _shared_cron(line, timezone)
    except TypeError:  # unhashable, so not text: Cron rejects it
        return Cron(line, timezone)


# The schedules are cached, because the objects of a large catalogue have only
# a few different schedules. The caches distinguish types. Otherwise the
# illegal spacing True would find the entry of the spacing 1.
_shared_every = functools.lru_cache(maxsize=4096, typed=True)(Every)
_shared_cron = functools.lru_cache(maxsize=4096, typed=True)(Cron)


def _seconds(value: object, *, zero: bool) -> bool:
    """Return whether *value* is a finite number of seconds.

    :param zero: True allows 0.
    """
    number = finite_number(value)
    return number is not None and (number > 0 or (zero and number == 0))


def _whole(value: object, low: int | None = None) -> bool:
    return type(value) is int and (low is None or value >= low)
