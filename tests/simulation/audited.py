# SPDX-License-Identifier: Apache-2.0
"""The audit of the product on a world, compared with the record of the world.

The audit reads the tables at the end, as ``distperiodic audit`` does. The
journal and the oracle know the whole life of each object. Both must give each
tick that somebody claimed the same end, and the same number of lost ticks.
"""

import collections
import dataclasses

from distperiodic.core import audit
from distperiodic.core.claim import State
from tests import checker

_Fate = audit.Fate
_FATES = {
    State.DONE: _Fate.ON_TIME, State.DEAD: _Fate.DEAD,
    State.SUPERSEDED: _Fate.SUPERSEDED, State.CANCELLED: _Fate.CANCELLED}


def judge(accounts, jobs, journal, oracle, patience):
    """Return findings where the audit differs from the record.

    :param accounts: By the name of each job that the store has.
    :param patience: Microseconds within which a due tick is claimed.
    """
    findings = []
    for name, account in accounts.items():
        fates = _fates(account, jobs[name], patience)
        total = sum(fates.values(), collections.Counter())
        for tick in sorted(tick for tick, found in fates.items()
                           if found[_Fate.UNEXPLAINED]):
            findings.append(checker.Finding('audit', (
                f'{name} tick {tick}: {fates[tick]}')))
        for tick, (seen, ended) in _differences(
                fates, name, account.begins, journal):
            findings.append(checker.Finding('audit', (
                f'{name} tick {tick}: {dict(seen)}, and the journal has '
                f'{dict(ended)}')))
        least, most = oracle.lost(name, account.begins)
        if not least <= total[_Fate.LOST] <= most:
            findings.append(checker.Finding('audit', (
                f'{name}: {total[_Fate.LOST]} lost, and the oracle knows of '
                f'{least} to {most}')))
    return findings


def _fates(account, job, patience):
    rule, spread = audit.named(account.schedule or job.schedule_text())
    plan = dataclasses.replace(
        job.plan(), schedule=rule, spread=spread,
        since=account.schedule_since)
    return audit.judge(
        account.ticks, account.alike, account.placed,
        audit.Job(plan, True, account.attended, account.paused, patience),
        account.begins, account.now)


def _differences(fates, name, begins, journal):
    """Yield each tick whose claims ended otherwise in the journal."""
    recorded = collections.defaultdict(collections.Counter)
    for (job, _, tick), claim in journal.claims.items():
        if job == name and tick >= begins and claim.endings:
            recorded[tick][_FATES[State(claim.endings[-1][1])]] += 1
    for tick in sorted({*fates, *recorded}):
        found = fates.get(tick, collections.Counter())
        seen = +collections.Counter({
            fate: found[fate] for fate in _FATES.values()})
        seen[_Fate.ON_TIME] += found[_Fate.LATE]
        if +seen != recorded[tick]:
            yield tick, (+seen, recorded[tick])
