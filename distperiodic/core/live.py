# SPDX-License-Identifier: Apache-2.0
"""Facts about the live processes that run or claim the commands of tasks.

They come from the reports of the processes, and may be some seconds old.
"""

import dataclasses
import enum
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence


class Lack(enum.StrEnum):
    """A reason why a command of a task does not run now."""

    #: The group has no scheduler.
    NO_SCHEDULER = 'no scheduler'
    #: The group has no worker for the module of the command.
    NO_WORKER = 'no worker'
    #: No scheduler defines the command, or no worker of its module does.
    NO_COMMAND = 'no process with the command'
    #: Operators have drained all schedulers, or all workers, that define the
    #: command.
    DRAINED = 'drained'
    #: All processes that may run the command are busy or on standby.
    BUSY = 'slots busy'


@dataclasses.dataclass(frozen=True)
class LiveProcess:
    """A live scheduler or worker."""

    #: True if the process acquires no new work.
    drained: bool = False
    #: Commands that the process defines. None means unknown: its report is
    #: missing, or has only a part of them.
    commands: frozenset[str] | None = None
    #: For each topic, true if the process can start no run of its jobs now:
    #: all threads for the topic are busy, or the process is a standby worker.
    #: A topic that is missing counts as not busy.
    busy: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def may_have(self, command: str) -> bool:
        return self.commands is None or command in self.commands


@dataclasses.dataclass(frozen=True)
class Live:
    """The live processes of one group."""

    schedulers: Sequence[LiveProcess] = ()
    #: Workers by topic. None means that the schedulers run the commands.
    workers: Mapping[str, Sequence[LiveProcess]] | None = None

    @property
    def published(self) -> bool:
        """True if a scheduler has reported which commands it defines."""
        return any(one.commands is not None for one in self.schedulers)

    def lacks(self, module: str, command: str
              ) -> Iterator[tuple[Lack, bool]]:
        """Yield the reasons why *command* of *module* does not run.

        The second value of each pair is True if the reason concerns the
        processes that run the command, and False if it concerns those that
        claim it.

        :param command: Name of the command, without its module.
        """
        name = f'{module}.{command}'
        if not self.schedulers:
            yield Lack.NO_SCHEDULER, False
        able = [one for one in self.schedulers if one.may_have(name)]
        yield from _lacking(self.schedulers, able, False)
        if self.workers is not None:
            workers = self.workers.get(module, ())
            if not workers:
                yield Lack.NO_WORKER, True
            able = [one for one in workers if one.may_have(name)]
            yield from _lacking(workers, able, True)
        if able and all(one.busy.get(module) for one in able):
            yield Lack.BUSY, True


def _lacking(processes: Sequence[LiveProcess], able: Sequence[LiveProcess],
             runs: bool) -> Iterator[tuple[Lack, bool]]:
    if processes and not able:
        yield Lack.NO_COMMAND, runs
    if able and all(one.drained for one in able):
        yield Lack.DRAINED, runs
