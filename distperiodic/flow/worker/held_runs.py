# SPDX-License-Identifier: Apache-2.0
"""The runs of each scheduler at a worker.

A scheduler may use the slots of a worker that the other schedulers do not use.
So each report tells its scheduler how many runs the worker has for the others.
The caller holds a lock while it calls :meth:`HeldRuns.change` or
:meth:`HeldRuns.outdated`; any thread may call :meth:`HeldRuns.announce`.
"""

from distperiodic.core.recent_maximum import RecentMaximum

# Seconds after which a scheduler learns how many slots the others use.
_SETTLE = 0.5


class _OfSender:
    """Number of runs of one sender whose outcome has not been reported."""

    __slots__ = ('announced', 'recently', 'runs', 'since')

    def __init__(self) -> None:
        self.runs = 0
        #: Monotonic time at which the sender began to use slots, in seconds.
        self.since = 0.0
        #: A sender with more work soon sends a run for each one that ends.
        self.recently = RecentMaximum()
        #: Number of runs for other senders in the last report to this sender.
        #: None means that the report had no number.
        self.announced: int | None = None

    def change(self, runs: int, now: float) -> None:
        """Add *runs* runs, or remove them if the number is negative."""
        if not self.recently.value:
            self.since = now
        self.runs += runs
        self.recently.record(self.runs, now)


class HeldRuns:
    """Numbers of runs whose outcomes have not been reported, by sender.

    A sender is named by its membership entry. Times are monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._held: dict[str, _OfSender] = {}

    def change(self, sender: str, runs: int, now: float) -> None:
        """Add *runs* runs of *sender*, or remove them if the number is
        negative.
        """
        self._held.setdefault(sender, _OfSender()).change(runs, now)

    def announce(self, sender: str, now: float) -> int | None:
        """Return the number of runs for other senders, for a report to
        *sender*.

        :returns: None if *sender* has no run here, or has just begun to use
            slots. The other schedulers may be about to send their runs, too.
        """
        held = self._held.get(sender)
        if held is None:
            return None
        others = self._for_others(sender, held, now)
        held.announced = others if held.runs else None
        return others

    def outdated(self, now: float) -> set[str]:
        """Return the senders with runs here whose last report had another
        number. Forget the senders that no longer use slots.
        """
        for sender, held in list(self._held.items()):
            held.change(0, now)
            if not held.recently.value:
                del self._held[sender]
        return {sender for sender, held in self._held.items()
                if held.runs and held.announced
                != self._for_others(sender, held, now)}

    def _for_others(self, sender: str, held: _OfSender,
                    now: float) -> int | None:
        if now - held.since < _SETTLE:
            return None
        return sum(of_other.recently.value
                   for other, of_other in list(self._held.items())
                   if other != sender)
