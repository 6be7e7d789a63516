# SPDX-License-Identifier: Apache-2.0
"""The runs of each scheduler at a worker.

A scheduler may use the slots of a worker that the other schedulers do not use.
So each report tells its scheduler how many runs the worker has for the others.

If more schedulers have work than the worker has slots, they take turns::

    its run ends ─► asks ─► turn: a slot is free ─► sends the next run
                             └─► sends nothing for a while: forgotten

A free slot waits for the scheduler that has a turn, unless this scheduler may
have no more work. In this case the next scheduler gets a turn, too. If a
scheduler has used a turn, it probably has more work.

Until its turn, a scheduler learns that the others use all slots. A scheduler
asks if more of its claims waited when it sent its last batch, or if another
one has asked: it may have claimed more objects since then. The one that has
asked first comes first.

The caller holds a lock while it calls these methods.
"""

from collections.abc import Callable

from distperiodic.core.message import Batch
from distperiodic.core.recent_maximum import RecentMaximum

# Seconds after which a scheduler learns how many slots the others use.
_SETTLE = 0.5
# Seconds until a turn ends that its scheduler does not use.
_UNUSED = 0.3


class _OfSender:
    """Number of runs of one sender whose outcome has not been reported."""

    __slots__ = ('announced', 'asked', 'recently', 'runs', 'since', 'turn',
                 'wants', 'worker')

    def __init__(self) -> None:
        self.runs = 0
        #: Monotonic time at which the sender began to use slots, in seconds.
        self.since = 0.0
        #: A sender with more work soon sends a run for each one that ends.
        self.recently = RecentMaximum()
        #: Number of runs for other senders in the last report to this sender.
        #: None means that the report had no number.
        self.announced: int | None = None
        #: Entry of this worker, as the sender knows it.
        self.worker = ''
        #: True if the sender has more work, or probably has.
        self.wants = False
        #: Monotonic time in seconds since which the sender waits for a turn.
        #: None means that it does not wait.
        self.asked: float | None = None
        #: Monotonic time in seconds at which the sender got a turn that it has
        #: not used. None means that there is none.
        self.turn: float | None = None

    def change(self, runs: int, now: float) -> None:
        """Add *runs* runs, or remove them if the number is negative."""
        if not self.recently.value:
            self.since = now
        self.runs += runs
        self.recently.record(self.runs, now)

    @property
    def active(self) -> bool:
        """True if the sender has runs here, or will send the next one."""
        return bool(self.runs or self.asked is not None
                    or self.turn is not None
                    or self.wants and self.recently.value)


class HeldRuns:
    """Numbers of runs whose outcomes have not been reported, by sender.

    A sender is named by its membership entry. Times are monotonic, in seconds.

    :param slots: Returns the number of slots of this worker.
    """

    def __init__(self, slots: Callable[[], int]) -> None:
        self._slots = slots
        self._held: dict[str, _OfSender] = {}

    def accept(self, batch: Batch, now: float) -> None:
        """Add the runs of *batch*."""
        held = self._held.setdefault(batch.sender, _OfSender())
        held.worker = batch.worker
        held.wants = batch.waiting > 0 or held.turn is not None
        held.asked = held.turn = None
        held.change(len(batch.objects), now)

    def end(self, sender: str, runs: int, now: float) -> None:
        """Remove *runs* runs of *sender*."""
        self._held.setdefault(sender, _OfSender()).change(-runs, now)

    def announce(self, sender: str, now: float) -> int | None:
        """Return the number of runs for other senders, for a report to
        *sender*.

        :returns: None if *sender* has no run here and does not take turns, or
            has just begun to use slots. The other schedulers may be about to
            send their runs, too.
        """
        held = self._held.get(sender)
        if held is None:
            return None
        self._ask(sender, held, now)
        others = self._for_others(sender, held, now)
        held.announced = others if held.runs else None
        return others

    def outdated(self, now: float) -> set[str]:
        """Return the senders with runs here whose last report had another
        number. Forget the senders that no longer use slots.
        """
        for sender, held in list(self._held.items()):
            held.change(0, now)
            if not (held.recently.value or held.active):
                del self._held[sender]
        return {sender for sender, held in self._held.items()
                if held.runs and held.announced
                != self._for_others(sender, held, now)}

    def turns(self, now: float) -> list[tuple[str, str]]:
        """Give the free slots to the senders that have asked for a turn.

        :returns: The senders to inform: those that got a turn, and those that
            have not used theirs. For each of them, its entry and the entry of
            this worker.
        """
        informed = []
        for sender, held in list(self._held.items()):
            if held.turn is not None and now - held.turn > _UNUSED:
                del self._held[sender]
                informed.append((sender, held.worker))
        asking = sorted((held.asked, sender)
                        for sender, held in self._held.items()
                        if held.asked is not None)
        free = self._free()
        for _, sender in asking:
            if free <= 0:
                break
            held = self._held[sender]
            held.asked, held.turn = None, now
            informed.append((sender, held.worker))
            # If it has no more work, the slot must not wait for it.
            free -= held.wants
        return informed

    def asking(self) -> list[tuple[str, str]]:
        """Return the senders that wait for a turn, as :meth:`turns` does."""
        return [(sender, held.worker) for sender, held in self._held.items()
                if held.asked is not None]

    def _free(self) -> int:
        return self._slots() - sum(
            held.runs + (held.turn is not None and held.wants)
            for held in self._held.values())

    def _ask(self, sender: str, held: _OfSender, now: float) -> None:
        """Give *sender* a turn, or let it wait for one, if it needs one."""
        if held.runs or held.turn is not None or held.asked is not None or (
                not self._takes_turns(sender, held, now)):
            return
        asking = len(self.asking())
        if not (held.wants or asking):
            # It sends its next run as if it began to use the slots.
            return
        if self._free() > asking:
            held.turn = now
        else:
            held.asked = now

    def _for_others(self, sender: str, held: _OfSender,
                    now: float) -> int | None:
        """Return the number of slots that *sender* must leave to the others.

        None means that it must not learn a number.
        """
        slots = self._slots()
        if self._takes_turns(sender, held, now):
            if held.turn is not None:
                return slots - 1
            return slots if held.runs or held.asked is not None else None
        if now - held.since < _SETTLE:
            return None
        others = self._used_by_others(sender)
        # Without runs, it would not learn when more slots are free.
        return others if held.runs or others < slots else None

    def _takes_turns(self, sender: str, held: _OfSender, now: float) -> bool:
        """Return False if each sender has a slot of its own, or may have."""
        slots = self._slots()
        if self.asking() or slots < sum(
                one.active for one in self._held.values()):
            return True
        return (len(self._held) > slots and not held.runs
                and now - held.since >= _SETTLE
                and self._used_by_others(sender) >= slots)

    def _used_by_others(self, sender: str) -> int:
        return sum(of_other.recently.value
                   for other, of_other in self._held.items()
                   if other != sender)
