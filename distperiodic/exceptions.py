# SPDX-License-Identifier: Apache-2.0
"""Error classes of this library.

A message states the problem, with the values that were found, and then the
remedy. All errors derive from :class:`DistperiodicError`. The command line
prints an error of this class without a traceback.
"""


class DistperiodicError(Exception):
    """Base class of all errors of this library."""


class ConfigError(DistperiodicError):
    """An option, an argument or a URL cannot be used as given."""


class InvalidSchedule(ConfigError, ValueError):
    """An invalid spacing, cron line or time zone, or an invalid combination.

    A schedule without ticks is invalid, too.
    """


class InvalidJob(ConfigError, ValueError):
    """A job with an illegal or contradictory definition, or an unknown job."""


class JobNameTaken(InvalidJob):
    """Two methods define jobs with the same name."""

    def __init__(self, name: str, first: str, second: str):
        kind, _, command = name.partition(':')
        if kind == 'task':
            super().__init__(
                f'command {command!r} is defined twice, in {first} and '
                f'{second}; remove or rename one of them')
            return
        super().__init__(
            f'job {name!r} is defined twice, in {first} and {second}; pass '
            'name=... to one of the decorators. Claims are kept under this '
            'name, so never reuse the name of a live job')


class InvalidMemberId(ConfigError, ValueError):
    """A name of a member or group that cannot be used.

    At least one of the supported coordination services cannot store it.
    """


class InvalidObject(DistperiodicError, ValueError):
    """The id or the schedule of an object cannot be used.

    Either the id is missing or malformed, or the text of the object's own
    schedule is too long for the store. The error also means that a catalogue
    method returned no collection of objects.
    """


class DuplicateMember(DistperiodicError):
    """Another live process of the group has the same member id."""


class CoordinationUnavailable(DistperiodicError):
    """The coordination service did not answer in time.

    A caller may repeat the call. The services of this library retry by
    themselves.
    """


class ViewUnknown(DistperiodicError):
    """The view of the group is unknown or cannot be trusted.

    A member without a trusted view must not start any work. The error does not
    mean that the group has no members.
    """


class InvalidMessage(DistperiodicError, ValueError):
    """A message that does not follow the format of this library exactly."""


class UnknownVersion(InvalidMessage):
    """A message in a version of the format that this release cannot read."""


class BusUnavailable(DistperiodicError):
    """The broker did not accept a connection, a login or a message.

    The services of this library send the work again.
    """


class NoConsumer(BusUnavailable):
    """The queue of the receiver does not exist in the broker, or no process
    receives the broadcast.

    An immediate retry would fail, too.
    """


class StoreUnavailable(DistperiodicError):
    """The database did not answer, or could not execute the call.

    The call may or may not have changed the store. The caller may repeat the
    call.
    """


class InvalidPoolRequest(DistperiodicError, ValueError):
    """An argument of a call to a task dispenser cannot be used.

    The call changed nothing.
    """


class PoolNotFound(DistperiodicError, LookupError):
    """The pool does not exist in the store.

    :meth:`distperiodic.TaskDispenser.recreate_task_pool` creates the pool.
    """


class InvalidProgress(DistperiodicError, ValueError):
    """The progress that a handler assigned cannot be saved.

    JSON cannot represent the value, or the value is longer than 64 KiB as
    JSON.
    """


class InvalidWorkflow(ConfigError, ValueError):
    """The definition of a workflow cannot be read or is illegal, the name of
    a module or command is illegal, or a type of task is unknown.
    """


class InvalidTask(DistperiodicError, ValueError):
    """A task has an illegal argument or result, or its status forbids the
    request.
    """


class UnknownTask(DistperiodicError, LookupError):
    """No task has this id, or no queue has this name."""


class RunReplaced(DistperiodicError):
    """Another process has taken over this run, the run exceeded its timeout,
    or the claim of the run is void.

    The run must roll back its open transactions.
    """


class SchemaError(ConfigError):
    """The tables of the database do not match this release.

    ``distperiodic db sync`` creates and upgrades them.
    """
