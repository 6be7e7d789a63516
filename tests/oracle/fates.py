# SPDX-License-Identifier: Apache-2.0
"""The outcome of each due tick, and a check of the reason for each skip.

The reason of a skip is true under the condition in its row:

======== ==============================================================
misfire  no member was able to claim the tick in time; or a newer tick,
         or the end of the tick's grace, came before the deadline
overlap  an earlier run of the object was open when the tick came due,
         or while the tick waited
pause    the job was paused when the tick came due, or while it waited
lost     the job's policy gave the tick up before the deadline of its
         claim; otherwise the product lost the tick: a finding
======== ==============================================================
"""

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.core import due as core_due
from distperiodic.core.claim import EARLIEST
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from tests import checker
from tests.oracle import due as oracle_due
from tests.oracle import facts as world_facts
from tests.oracle.able import Able
from tests.oracle.due import Due
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.oracle.facts import Facts
from tests.oracle.facts import Pair
from tests.oracle.facts import Skip
from tests.oracle.facts import Span

#: Possible outcomes of a due tick.
FATES = ('claimed', 'misfire', 'overlap', 'pause', 'open', 'lost')


@dataclasses.dataclass
class Object:
    """The record of one object."""

    pair: Pair
    pieces: list[oracle_due.Piece]
    dues: list[Due]
    #: Claims by tick.
    claims: dict[int, checker.Claim]
    skips: list[Skip]
    #: Ticks that an operator triggered. Earlier due ticks stay due.
    triggered: set[int]

    def __post_init__(self) -> None:
        self._in_order = sorted(self.claims.values(), key=lambda c: c.at)
        self.ticks = [one.tick for one in self.dues]

    def open(self, begin: int, end: int, *, but: int,
             started: bool = False) -> Iterator[Span]:
        """Yield the spans of the claims that were open between two instants.
        These are claims of ticks before *but*, and claims that an operator
        triggered.

        :param started: only claims whose run was granted by *end*.
        """
        for claim in self._in_order:
            if claim.at > end:
                break
            if claim.tick >= but and claim.tick not in self.triggered or (
                    started) and (
                    claim.granted is None or claim.granted > end):
                continue
            ended = FOREVER if claim.ended is None else claim.ended
            if ended >= begin:
                yield Span(claim.at, ended)

    def passed(self, tick: int) -> tuple[int, Skip | None] | None:
        """Return when *tick* was first settled without its own claim, and by
        which skip.

        The skip is None if the claim of a later tick settled *tick*.
        """
        at, by = FOREVER, None
        for skip in self.skips:
            if skip.before < tick <= skip.until:
                at, by = skip.at, skip
                break
        later = min((claim.at for claim in self._in_order
                     if claim.tick > tick
                     and claim.tick not in self.triggered), default=FOREVER)
        if later < at:
            return later, None
        return None if by is None else (at, by)

    def settled_before(self, due: Due) -> bool:
        """Return whether the tick was settled before the schedule of the tick
        came into force.

        Such a tick is not due, because only ticks after the watermark are due.
        If the tick has a phase, its due time may be after the change.
        """
        passed = self.passed(due.tick)
        return passed is not None and passed[0] < due.since

    def passed_before(self, due: Due) -> bool:
        """Return whether the tick was settled before its due time."""
        passed = self.passed(due.tick)
        return passed is not None and passed[0] < due.at


class Oracle:
    """Judge of a record; see :func:`judge`."""

    def __init__(self, facts: Facts, claims: Mapping[
            checker.Key, checker.Claim], skips: Iterable[Skip]):
        self._facts = facts
        self._owners = oracle_due.Owners(facts)
        self._able = Able(facts, self._owners)
        self.findings: list[checker.Finding] = []
        self.fates: collections.Counter[str] = collections.Counter()
        self.objects = self._objects(claims, skips)

    def _objects(self, claims: Mapping[checker.Key, checker.Claim],
                 skips: Iterable[Skip]) -> list[Object]:
        claims_of: dict[Pair, dict[int, checker.Claim]] = (
            collections.defaultdict(dict))
        for claim in claims.values():
            claims_of[claim.job, claim.object][claim.tick] = claim
        skips_of: dict[Pair, list[Skip]] = collections.defaultdict(list)
        for skip in skips:
            skips_of[skip.job, skip.object].append(skip)
        for pair in [*claims_of, *skips_of]:
            if pair not in self._facts.listings:
                self._report('undue', pair, None, 'was never listed')
        return [self._object(pair, claims_of[pair], skips_of[pair])
                for pair in self._facts.listings]

    def _object(self, pair: Pair, claims: dict[int, checker.Claim],
                skips: list[Skip]) -> Object:
        pieces = [*oracle_due.pieces(self._facts, self._owners, pair)]
        return Object(pair, pieces,
                      oracle_due.dues(self._facts, pieces, pair),
                      claims, skips,
                      {tick for job, tick in self._facts.triggered
                       if job == pair[0]})

    def required(self) -> dict[str, tuple[int, int]]:
        """Count the due ticks of each job whose claim was required.

        If such a tick had not been claimed, there would be a finding.

        :returns: For each job, the numbers of required claims and of due
            ticks.
        """
        found: dict[str, tuple[int, int]] = {}
        for one in self.objects:
            required, every = found.get(one.pair[0], (0, 0))
            for index, due in enumerate(one.dues):
                end = min(self._facts.end, due.until)
                if due.job.misfire is not Misfire.ALL:
                    end = min(end, self._end(
                        due, _following(one.dues, index, due)))
                required += due.must and self._deadline(
                    one, due, self._facts.end) < end
                every += 1
            found[one.pair[0]] = required, every
        return found

    def judge(self) -> None:
        for one in self.objects:
            for index, due in enumerate(one.dues):
                following = _following(one.dues, index, due)
                claim, again = one.claims.get(due.tick), due.again
                if claim is None:
                    if due.must and not one.settled_before(due):
                        self._not_claimed(one, due, following)
                    if again is not None and again.must and (
                            not one.passed_before(again)):
                        self._not_claimed(
                            one, again, _following(one.dues, index, again))
                elif again is not None and self._is_for_second(
                        due, again, claim):
                    self._claimed_in_time(one, due, claim)
                    later = _following(one.dues, index, again)
                    self._claimed(one, again, later, claim)
                    if not again.must:
                        ends = [self._end(again, later)]
                        # While the old schedule may still hold, the claim may
                        # be for the first due time.
                        if claim.at < due.may_until:
                            ends.append(self._end(due, following))
                        self._claimed_before_its_end(
                            one, again, max(ends), claim)
                else:
                    self._claimed(one, due, following, claim)
            self._undue(one)
            for skip in one.skips:
                self._early_skip(one, skip)
                self._miscounted(one, skip)

    # -- claimed

    def _is_for_second(self, due: Due, again: Due,
                       claim: checker.Claim) -> bool:
        """Return whether *claim* must be judged by the second due time.

        While the old schedule may still hold, this is so only if the object
        was due for the second time already.
        """
        return due.until <= claim.at and (
            due.may_until <= claim.at
            or self._facts.by_store(claim.at) >= again.first - EARLIEST)

    def _claimed(self, one: Object, due: Due,
                 following: Due | None, claim: checker.Claim) -> None:
        self.fates['claimed'] += 1
        facts = self._facts
        if facts.by_store(claim.at) < due.first - EARLIEST:
            self._report('early', one.pair, due, (
                f'claimed {(due.at - claim.at) / SECOND:.3f} s before'))
        if due.must:
            self._claimed_in_time(one, due, claim)
            self._claimed_before_its_end(
                one, due, self._end(due, following), claim)

    def _claimed_before_its_end(self, one: Object, due: Due, end: int,
                                claim: checker.Claim) -> None:
        facts = self._facts
        waited = any(one.open(due.at, claim.at, but=due.tick))
        if claim.at > end + facts.bounds.slack and not waited and (
                due.job.misfire is not Misfire.ALL):
            self._report('outdated', one.pair, due, (
                f'claimed at {self._seconds(claim.at)}, and its policy gave '
                f'it up at {self._seconds(end)}'))

    def _claimed_in_time(self, one: Object, due: Due,
                         claim: checker.Claim) -> None:
        deadline = self._deadline(one, due, claim.at)
        # If the schedule was replaced before the deadline, the tick is due by
        # the new schedule.
        if claim.at > deadline and deadline < due.until:
            self._report('late', one.pair, due, (
                f'claimed at {self._seconds(claim.at)}, had to be at '
                f'{self._seconds(deadline)}'))

    def _deadline(self, one: Object, due: Due, until: int) -> int:
        """Return the deadline for the claim of *due*. If the deadline is later
        than *until*, the result is any time after *until*.
        """
        since = due.at
        while True:
            if since + self._facts.bounds.prompt > until:
                return FOREVER
            deadline = self._able.deadline(*one.pair, since, due.known)
            if deadline > until:
                return deadline
            busy = max((span.end for span in one.open(
                since, deadline, but=due.tick)), default=since)
            paused = max((span.end for span in self._pauses(one.pair)
                          if span.begin <= deadline and since < span.end),
                         default=since)
            if max(busy, paused) <= since:
                return deadline
            since = max(busy, paused) + self._facts.bounds.sweep

    def _pauses(self, pair: Pair) -> list[Span]:
        return self._facts.pauses.get(pair[0], [])

    def _end(self, due: Due, following: Due | None) -> int:
        """Return the true time at which the job's policy gives up a tick."""
        end = FOREVER if following is None else following.at
        if due.job.misfire is Misfire.SKIP:
            end = min(end, self._facts.comes(
                due.instant + due.plan.grace_us(due.tick)))
        return end

    # -- not claimed

    def _not_claimed(self, one: Object, due: Due,
                     following: Due | None) -> None:
        passed = one.passed(due.tick)
        if passed is None:
            deadline = self._deadline(one, due, self._facts.end)
            if deadline < min(self._facts.end, due.until):
                self.fates['lost'] += 1
                self._report('lost', one.pair, due, (
                    'never decided; it had to be claimed by '
                    f'{self._seconds(deadline)}'))
            else:
                self.fates['open'] += 1
            return
        at, skip = passed
        if skip is None:
            deadline = self._deadline(one, due, self._facts.end)
            if min(due.until, self._end(due, following)) > deadline:
                kind = 'lost'
            elif due.until < at:
                # A change of the schedule or the listing has ended the tick.
                return
            else:
                kind = 'unexplained'
            self.fates['lost'] += 1
            self._report(kind, one.pair, due, (
                'passed over without a word by the claim at '
                f'{self._seconds(at)}'))
            return
        self.fates[skip.by] += 1
        wrong = self._wrong(one, due, following, skip)
        if wrong:
            self._report('untrue' if skip.by != 'lost' else 'lost',
                         one.pair, due, (
                f'skipped by {skip.by} at {self._seconds(at)}: {wrong}'))

    def _wrong(self, one: Object, due: Due,
               following: Due | None, skip: Skip) -> str:
        """Return the error in the reason of a skip; empty means no error."""
        if skip.by == 'pause':
            if world_facts.within(self._pauses(one.pair), due.at, skip.at):
                return ''
            return 'it was not paused then'
        if skip.by == 'overlap':
            # With misfire=all a tick waits for a claim that has not started.
            started = due.job.misfire is Misfire.ALL
            begin = due.at
            if len(self._facts.ahead) > 1:
                # The member that skips may not know yet that the clock was
                # set.
                begin -= EARLIEST
            if not any(one.open(begin, skip.at, but=due.tick,
                                started=started)):
                return 'no earlier run was open'
            if (due.job.misfire is Misfire.ALL
                    and due.job.overlap is Overlap.WAIT):
                return 'each of its ticks waits'
            return ''
        if skip.by == 'misfire':
            return self._wrong_misfire(one, due, following, skip)
        deadline = self._deadline(one, due, skip.at)
        if deadline < min(self._end(due, following), due.until):
            return f'it had to be claimed by {self._seconds(deadline)}'
        # The policy gave up the tick before any member had to claim it. So the
        # skip is correct.
        return ''

    def _wrong_misfire(self, one: Object, due: Due,
                       following: Due | None, skip: Skip) -> str:
        if due.until <= skip.at:
            # A change has ended the tick. The skip is correct if no member had
            # to claim the tick before the change.
            deadline = self._deadline(one, due, due.until)
            return '' if deadline > due.until else (
                f'it had to be claimed by {self._seconds(deadline)}')
        if due.job.misfire is Misfire.ALL:
            newest = bisect.bisect_right(
                [other.at for other in one.dues], skip.at)
            if newest - one.ticks.index(due.tick) > core_due.CATCH_UP:
                return ''
            return 'each of its ticks runs'
        end = min(self._end(due, following), due.until)
        if skip.at < end - self._facts.bounds.slack:
            return f'it could run until {self._seconds(end)}'
        deadline = self._deadline(one, due, end)
        if deadline > end:
            return ''
        return f'it had to be claimed by {self._seconds(deadline)}'

    # -- other errors

    def _undue(self, one: Object) -> None:
        """Report claims of ticks that were not due."""
        known = {*one.ticks}
        used: set[int] = set()
        for tick, claim in one.claims.items():
            if tick in known or tick in one.triggered:
                continue
            piece = self._immediate(one, claim, used)
            if piece is not None:
                used.add(piece)
                continue
            self._report('undue', one.pair, None, (
                f'claimed at {self._seconds(claim.at)} for '
                f'{self._seconds(tick)}, when it was not due'))

    @staticmethod
    def _immediate(one: Object, claim: checker.Claim,
                   used: set[int]) -> int | None:
        """Return the index of the piece whose beginning is itself a tick.

        If a job runs immediately, *claim* may be the claim of such a tick.

        :param used: pieces whose beginnings were claimed already.
        """
        return next((number for number, piece in enumerate(one.pieces)
                     if number not in used and piece.plan.immediate
                     and piece.may.begin <= claim.at < piece.may.end), None)

    def _early_skip(self, one: Object, skip: Skip) -> None:
        """Report ticks that were given up before they were due."""
        index = bisect.bisect_right(one.ticks, skip.until) - 1
        if index < 0 or one.ticks[index] <= skip.before:
            return
        due = one.dues[index]
        if self._facts.by_store(skip.at) < due.first - EARLIEST:
            self._report('early', one.pair, due, (
                f'skipped by {skip.by} '
                f'{(due.at - skip.at) / SECOND:.3f} s before'))

    def _miscounted(self, one: Object, skip: Skip) -> None:
        """Report skips whose count differs from the number of due ticks."""
        within = one.dues[bisect.bisect_right(one.ticks, skip.before):
                          bisect.bisect_right(one.ticks, skip.until)]
        # Count only ticks whose schedule was in force at the time of the skip.
        least = sum(due.must and due.since <= skip.at < due.until
                    for due in within)
        most = len(within) + self._begins_within(one, skip)
        if skip.counted is not None and not least <= skip.counted <= most:
            self._report('account', one.pair, None, (
                f'from {self._seconds(skip.before)} to '
                f'{self._seconds(skip.until)} skipped by {skip.by} and '
                f'counted as {skip.counted}, of {least} to {most} '
                'that were due'))

    def _begins_within(self, one: Object, skip: Skip) -> bool:
        """Return whether the skipped ticks include the instant at which the
        object was listed. If the job runs immediately, this instant is a tick.
        """
        job, key = one.pair
        return any(
            piece.may.begin <= reading.at < piece.may.end
            for piece in one.pieces if piece.plan.immediate
            for reading in self._facts.readings[job]
            if skip.before < reading.instant <= skip.until
            and key in reading.objects)

    def _report(self, kind: str, pair: Pair, due: Due | None,
                text: str) -> None:
        tick = '' if due is None else (
            f' tick {self._seconds(due.tick)}'
            + (f' due {self._seconds(due.at)}' if due.at != due.tick else ''))
        self.findings.append(checker.Finding(
            kind, f'{pair[0]} {pair[1]}{tick}: {text}'))

    def _seconds(self, instant: int) -> str:
        return ('never' if instant >= FOREVER
                else f'{(instant - self._facts.begin) / SECOND:.3f}')


def _following(dues: Sequence[Due], index: int, due: Due) -> Due | None:
    """Return the next tick of the schedule of *due* after *dues[index]*.

    While a change of the schedule is not known yet, ticks of both schedules
    are mixed.
    """
    return next((
        one for other in itertools.islice(dues, index + 1, None)
        for one in (other, other.again)
        if one is not None and one.plan.schedule == due.plan.schedule), None)


def judge(facts: Facts, claims: Mapping[checker.Key, checker.Claim],
          skips: Iterable[Skip]) -> Oracle:
    """Judge all due ticks."""
    oracle = Oracle(facts, claims, skips)
    oracle.judge()
    return oracle
