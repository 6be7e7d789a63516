# SPDX-License-Identifier: Apache-2.0
"""All errors that this library raises on purpose.

A message states the problem with its values, and then the remedy. All errors
derive from :class:`DistperiodicError`, so that the command line can print one
line for each of them.
"""


class DistperiodicError(Exception):
    """Base class of all errors of this library."""


class ConfigError(DistperiodicError):
    """An option, an argument or a URL cannot be used as given."""


class InvalidSchedule(ConfigError, ValueError):
    """A spacing, cron line or time zone that yields no ticks."""


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
    """A name of a member or a group that a coordination service cannot store.
    """


class InvalidObject(DistperiodicError, ValueError):
    """An object of a catalogue without a usable, unique id."""


class DuplicateMember(DistperiodicError):
    """Another live process of the group has the same member id."""


class CoordinationUnavailable(DistperiodicError):
    """The coordination service did not answer in time.

    A caller may repeat the call. A service retries by itself.
    """


class ViewUnknown(DistperiodicError):
    """The view of the group is unknown or cannot be trusted.

    This is not the same as a view without members: a member without a trusted
    view must not start any work.
    """


class InvalidMessage(DistperiodicError, ValueError):
    """A message that does not follow the format of this library exactly."""


class UnknownVersion(InvalidMessage):
    """A message in a version of the format that this release cannot read."""


class BusUnavailable(DistperiodicError):
    """A message could not be sent to the broker.

    A service sends the work again.
    """


class NoConsumer(BusUnavailable):
    """The broker has no queue of that name, so an immediate retry would fail.
    """


class StoreUnavailable(DistperiodicError):
    """The database did not answer, or could not execute the call.

    It is unknown whether the call changed anything. The caller may repeat the
    call.
    """


class InvalidPoolRequest(DistperiodicError, ValueError):
    """A call of a task dispenser with an argument that cannot be used.

    The call changed nothing.
    """


class PoolNotFound(DistperiodicError, LookupError):
    """A pool that does not exist in the store.

    :meth:`distperiodic.TaskDispenser.recreate_task_pool` creates it.
    """


class InvalidProgress(DistperiodicError, ValueError):
    """The progress that a run assigned cannot be saved.

    The value is not a JSON value, or is longer than 64 KiB as JSON.
    """


class InvalidWorkflow(ConfigError, ValueError):
    """A workflow with an illegal definition, or an unknown type of task."""


class InvalidTask(DistperiodicError, ValueError):
    """A task cannot be submitted as given, or its status forbids the request.
    """


class UnknownTask(DistperiodicError, LookupError):
    """No task has this id, or no queue has this name."""


class RunReplaced(DistperiodicError):
    """Another process has taken over the claim of this run, or the claim is
    void.

    The run must not commit its open transactions.
    """


class SchemaError(ConfigError):
    """The tables of the database do not match this release.

    ``distperiodic db sync`` creates and upgrades them.
    """
