# SPDX-License-Identifier: Apache-2.0
"""Every error this library raises on purpose.

A message says what was found, with the values, and then what to do about
it. All of them derive from :class:`DistperiodicError`, so that the command
line can print one line for any of them.
"""


class DistperiodicError(Exception):
    """The root: catching it catches all errors of this library."""


class ConfigError(DistperiodicError):
    """An option, an argument or a URL cannot be used as given."""


class InvalidSchedule(ConfigError, ValueError):
    """A spacing, cron line or time zone that yields no ticks."""


class InvalidJob(ConfigError, ValueError):
    """A decorated method whose options contradict each other."""


class JobNameTaken(InvalidJob):
    """Two methods define a job of the same name."""

    def __init__(self, name: str, first: str, second: str):
        super().__init__(
            f'job {name!r} is defined twice, in {first} and {second}; pass '
            'name=... to one of the decorators. Claims are kept under this '
            'name, so never reuse the name of a live job')


class InvalidMemberId(ConfigError, ValueError):
    """An identity that a coordination service cannot carry."""


class InvalidObject(DistperiodicError, ValueError):
    """An object of a catalogue without a usable, unique id."""


class DuplicateMember(DistperiodicError):
    """Another live process of the group has the same member id."""


class CoordinationUnavailable(DistperiodicError):
    """The coordination service did not answer in time."""


class ViewUnknown(DistperiodicError):
    """This member does not know who is in its group, or may not trust it.

    It is raised rather than read as 'no members': a member that is not sure
    of its view must start nothing.
    """


class InvalidMessage(DistperiodicError, ValueError):
    """A message that is not one of ours, or not any more."""


class UnknownVersion(InvalidMessage):
    """A message of a format that this release does not speak."""


class BusUnavailable(DistperiodicError):
    """The message could not be handed to the broker."""


class StoreUnavailable(DistperiodicError):
    """The database did not answer, or could not do what it was asked.

    It is unknown whether anything was changed. The same call may be made
    again.
    """


class InvalidProgress(DistperiodicError, ValueError):
    """What a run says of itself cannot be kept."""


class RunReplaced(DistperiodicError):
    """This run's claim is somebody else's by now, or void.

    Whatever it has not committed must not be.
    """


class SchemaError(ConfigError):
    """The tables of the database are not those of this release."""
