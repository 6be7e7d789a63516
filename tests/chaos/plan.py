# SPDX-License-Identifier: Apache-2.0
"""The plan of a cluster's faults, drawn from a seed."""

import random
from typing import NamedTuple

from tests.chaos import failpoints

#: Minimum and maximum duration in seconds, for each kind of fault.
KINDS = {
    'scheduler killed': (0.5, 6.0),
    'worker killed': (0.5, 6.0),
    'scheduler frozen shortly': (0.5, 2.0),
    'worker frozen shortly': (0.5, 2.0),
    'scheduler frozen past its session': (3.5, 5.5),
    'worker frozen past its session': (3.5, 5.5),
    'scheduler frozen past its lease': (6.5, 9.0),
    'worker frozen past its lease': (6.5, 9.0),
    'killed at a step': (0.0, 0.0),
    'frozen at a step': (3.5, 8.0),
    'rolling restart': (0.0, 0.0),
    'points changed': (3.0, 6.0),
    'name taken': (4.0, 7.0),
    'clock stepped': (3.0, 8.0),
    'log full': (3.0, 6.0),
    'active killed': (0.0, 3.0),
    'active frozen': (0.0, 3.0),
    'active cut off': (0.0, 3.0),
    'active cut from ensemble': (4.5, 6.5),
    'active cut from store': (4.5, 6.5),
    'active replaced': (0.0, 0.0),
    'promotion asked': (0.0, 0.0),
    'ensemble killed': (1.0, 7.0),
    'ensemble wiped': (0.0, 1.0),
    'ensemble frozen': (2.0, 6.0),
    'ensemble cut': (0.5, 5.0),
    'ensemble half-open': (2.0, 6.0),
    'ensemble silent': (2.0, 6.0),
    'ensemble slow': (2.0, 6.0),
    'member cut from ensemble': (3.0, 8.0),
    'broker killed': (0.5, 5.0),
    'broker wiped': (0.5, 5.0),
    'broker flushed': (0.0, 0.0),
    'broker frozen': (2.0, 6.0),
    'broker out of memory': (2.0, 5.0),
    'broker out of disk': (2.0, 5.0),
    'queue deleted': (0.0, 0.0),
    'connections closed': (0.0, 0.0),
    'messages doubled': (2.0, 4.0),
    'messages replayed': (2.0, 4.0),
    'messages forged': (2.0, 4.0),
    'garbage sent': (0.0, 0.0),
    'broker cut': (0.5, 5.0),
    'broker half-open': (2.0, 6.0),
    'broker silent': (2.0, 6.0),
    'broker slow': (2.0, 6.0),
    'member cut from broker': (3.0, 8.0),
    'store killed': (0.5, 5.0),
    'store frozen': (1.0, 5.0),
    'store connections ended': (0.0, 0.0),
    'commit answer lost': (2.0, 4.0),
    'store disk full': (2.0, 4.0),
    'store locked': (2.0, 6.0),
    'store cut': (0.5, 5.0),
    'store half-open': (2.0, 6.0),
    'store silent': (2.0, 6.0),
    'store slow': (2.0, 5.0),
    'member cut from store': (3.0, 8.0),
    'all servers away': (3.0, 6.0),
}


#: Minimum and maximum number of seconds from the start of a fault to the start
#: of the next fault. The numbers are large, so some faults overlap no other
#: fault.
LOOSE = (1.0, 12.0)
#: Shorter intervals than :data:`LOOSE`. It takes less time until all kinds of
#: faults have occurred, but more faults overlap.
DENSE = (0.8, 3.5)


#: Kinds of faults that need a small file system, which the test can fill.
ON_A_SMALL_DISK = frozenset(['store disk full'])
#: All kinds of faults.
EVERY = frozenset(KINDS)
#: Faults of the bus and of its messages. In addition, processes are killed,
#: processes die or stop at a failpoint, all servers are killed, and an
#: operator replaces the active worker.
OF_THE_BUS = frozenset(
    [kind for kind in KINDS if 'broker' in kind or 'message' in kind] + [
        'queue deleted', 'connections closed', 'garbage sent',
        'all servers away', 'scheduler killed', 'worker killed',
        'active killed', 'active replaced',
        'killed at a step', 'frozen at a step'])
#: Faults of workers, and above all of the active one. Faults of the servers on
#: which the election depends, choices of an operator, faults at a failpoint,
#: and rolling restarts.
OF_STANDBY = frozenset(
    [kind for kind in KINDS if kind.startswith(('active', 'worker'))] + [
        'promotion asked', 'member cut from ensemble',
        'member cut from store', 'member cut from broker', 'ensemble killed',
        'ensemble cut', 'store killed', 'store cut', 'killed at a step',
        'frozen at a step', 'rolling restart'])
# Kinds of faults at a failpoint. They occur more often than the others,
# because there are many failpoints.
_AT_A_STEP = ('killed at a step', 'frozen at a step')
# For each of these kinds, the number of additional faults in each round.
_MORE = 2


class Fault(NamedTuple):
    """One planned fault."""

    #: Start of the fault, in seconds from the start of the plan. The times of
    #: a plan are those with pace 1; see :mod:`tests.chaos.pace`.
    at: float
    kind: str
    #: Duration of the fault in seconds.
    seconds: float
    #: Seed of the random choices for the fault, such as the choice of a host.
    seed: str
    #: Failpoint at which a process is killed or stopped. Empty means that the
    #: fault is not tied to a failpoint.
    point: str = ''


def draw(seed, seconds, pause=LOOSE, without=()):
    """Return the faults of *seed* that end within a number of seconds.

    The faults form rounds. In each round, each kind of fault occurs once, or
    three times if it needs a failpoint. The last round may be incomplete.

    :param pause: :data:`LOOSE` or :data:`DENSE`.
    :param without: kinds of faults to leave out.
    """
    chance = random.Random(f'plan {seed}')
    kinds, points = [], []
    faults = []
    at = 0.0
    while True:
        at += chance.uniform(*pause)
        if not kinds:
            kinds = sorted(KINDS.keys() - set(without)) + [
                kind for kind in _AT_A_STEP for _ in range(_MORE)]
            chance.shuffle(kinds)
        kind = kinds.pop()
        lasts = chance.uniform(*KINDS[kind])
        if at + lasts > seconds:
            return faults
        point = ''
        if kind in _AT_A_STEP:
            if not points:
                points = sorted(failpoints.POINTS)
                chance.shuffle(points)
            point = points.pop()
        faults.append(Fault(round(at, 3), kind, round(lasts, 3),
                            f'{seed}/{len(faults)}', point))
