# SPDX-License-Identifier: Apache-2.0
"""The jobs of the cluster, with all policies and with handlers of all kinds.

A handler records its start in the ledger, checks its lease while it works,
sends an effect with its fence to the ledger, and records its outcome. Some
handlers of the job 'alone' do not check their lease, and the handler of the
job 'booked' commits its effect in the store. The duration and the failure of a
handler's run depend only on the object, the tick and the attempt. So they are
the same in each process.
"""

import dataclasses
import hashlib
import threading
import time

import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import opts
from distperiodic import periodic
from distperiodic import tasks
from tests import checker
from tests.chaos import tasks as own_tasks
from tests.chaos.cluster import ALONE
from tests.chaos.pace import PACE
from tests.chaos.pace import SECOND


@dataclasses.dataclass(frozen=True, slots=True)
class Policy(checker.Policy):
    """The guarantees of a job, and the spacing of its ticks."""

    #: Microseconds between two ticks.
    period: int = 0


#: The policy of each job by its name, for the checker.
POLICIES = {policy.job: policy for policy in (
    Policy('poll', period=2 * SECOND),
    Policy('each', period=4 * SECOND, every=True),
    Policy('flaky', period=4 * SECOND, most=8),
    Policy('wait', period=3 * SECOND),
    Policy('all', period=5 * SECOND),
    Policy('once', period=5 * SECOND, at_most_once=True),
    Policy('slow', period=4 * SECOND),
    Policy('spread', period=20 * SECOND),
    Policy('own', period=18 * SECOND),
    Policy('booked', period=4 * SECOND),
    Policy('narrow', period=6 * SECOND, every=True, at_once=3),
    Policy('group', period=17 * SECOND),
    Policy('rare', period=15 * SECOND),
    Policy('cron', period=60 * checker.SECOND),
    Policy('alone', period=2 * SECOND),
)}
#: Number of objects of each job. The numbers are small, because the cluster
#: shares two processors with other tests. After a fault, the processors must
#: have time left for the backlog.
OBJECTS = {'poll': 30, 'each': 12, 'flaky': 12, 'wait': 6, 'all': 6,
           'once': 10, 'slow': 4, 'spread': 30, 'own': 18, 'booked': 6,
           'narrow': 6, 'rare': 30, 'cron': 10, 'alone': 8}
#: Jobs with long periods. The deadline of a claim is before the next tick, so
#: the oracle requires a claim for each tick. A tick of a job with a short
#: period may be given up for the next tick.
RARE = ('spread', 'own', 'group', 'rare', 'cron')
#: Seconds between the ticks of an object of the job 'own'. The objects use
#: these values in turn. Zero means that the object follows the schedule of the
#: job.
OWN = (0, 15 * PACE, 20 * PACE)

#: Maximum duration of a run of the job 'alone', in seconds.
LONGEST = 2.0 * PACE

#: Seconds between two checks of the lease in a handler.
_LOOK = 0.05


def objects_of(job):
    """Return the ids of a job's objects. The only id of a job without a
    catalogue is the name of the job.
    """
    if job not in OBJECTS:
        return [job]
    return [f'{job}-{n:03}' for n in range(OBJECTS[job])]


def is_stubborn(key):
    """Return whether the handler of an object of the job 'alone' never checks
    its lease.
    """
    return int(key[-3:]) % 2 == 1


class Replaced(Exception):
    """The run was cancelled, or its process cannot trust the lease of the run.
    """


class Hands:
    """The common code of all handlers.

    :param ledger: a :class:`tests.chaos.ledger.Ledger`.
    :param connection: URL of the store. A handler writes an effect there in
        the same transaction as the end of its run.
    """

    def __init__(self, ledger, connection):
        self._ledger = ledger
        self._connection = connection
        self._engine = None
        self._making = threading.Lock()

    def begin(self, context):
        self._tell('start', context, attempt=context.attempt)

    def end(self, context, outcome):
        self._tell('end', context, outcome=outcome)

    def _tell(self, what, context, **about):
        return self._ledger.tell(
            what, job=context.job, object=context.object,
            tick=_tick(context), fence=context.fence, wall=time.time(),
            **about)

    def work(self, context, seconds, fails=0.0, looks=True):
        """Run for a number of seconds, and then succeed or fail.

        :param seconds: duration of the run at pace 1; see
            :mod:`tests.chaos.pace`.
        :param fails: probability of a failure, from 0 to 1.
        :param looks: False means that the handler does not check its lease.
        """
        self.begin(context)
        seconds *= PACE
        try:
            if looks:
                self._while_mine(context, seconds)
            else:
                time.sleep(seconds)
            if _draw(context, 'fails') < fails:
                raise RuntimeError('drawn to fail')
        except Replaced:
            self.end(context, 'replaced')
            raise
        except RuntimeError:
            self.end(context, 'failed')
            raise
        self._tell('effect', context)
        self.end(context, 'done')

    def step(self, context, parameters):
        """Run a command and return its result."""
        self._tell('step', context, attempt=context.attempt,
                   step=context.step, rollback=context.rollback,
                   parameters=parameters)
        back = 'r' if context.rollback else ''
        outcome, result = 'failed', {f'{context.step}{back}': context.fence}
        try:
            self._while_mine(
                context, 0.4 * PACE * _draw(context, 'takes'))
            if parameters.get('fails') == context.step and not back:
                raise RuntimeError('to be rolled back')
            outcome = 'done'
        finally:
            self._tell('step end', context, outcome=outcome, result=result)
        return result

    def book(self, context):
        """Commit an effect and the end of the run in one transaction."""
        self.begin(context)
        outcome = 'failed'
        try:
            with self._making:
                # Runs may start at the same time. The lock ensures that they
                # create only one engine in the process, because each engine
                # keeps connections open.
                if self._engine is None:
                    url = sa.make_url(self._connection)
                    self._engine = sa.create_engine(
                        url.set(drivername='postgresql+psycopg2'),
                        pool_size=2, pool_timeout=10 * PACE,
                        isolation_level='READ COMMITTED')
            with self._engine.begin() as connection:
                connection.execute(sa.text(
                    'SET idle_in_transaction_session_timeout = '
                    f"'{5 * PACE}s'"))
                connection.execute(sa.text(
                    'INSERT INTO chaos_effect VALUES (:object, :tick, '
                    ':fence)'), {
                        'object': context.object, 'fence': context.fence,
                        'tick': _tick(context)})
                context.finish(connection)
            outcome = 'done'
        finally:
            self.end(context, outcome)

    @staticmethod
    def _while_mine(context, seconds):
        over = time.monotonic() + seconds
        while True:
            if not context.is_current():
                raise Replaced(context.key)
            left = over - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LOOK))


def _tick(context):
    return round(context.tick.timestamp() * checker.SECOND)


def _draw(context, what):
    """Return a number from 0 to 1 that depends only on *what*, on the object,
    on the tick and on the attempt.
    """
    text = f'{what} {context.key} {context.attempt}'.encode()
    digest = hashlib.sha256(text).digest()
    return int.from_bytes(digest[:8], 'big') / 2 ** 64


class _Own:
    """An object with a schedule of its own."""

    def __init__(self, key, spacing):
        self.id = key
        self.spacing = spacing


def spacing_of(job, key):
    """Return the seconds between the ticks of an object that has its own
    schedule. Zero means that the object follows the schedule of its job.
    """
    return OWN[int(key[-3:]) % len(OWN)] if job == 'own' else 0


def _catalogue(job):
    return lambda self, context: [
        _Own(key, spacing_of(job, key)) if spacing_of(job, key) else key
        for key in objects_of(job)]


def _command(module, name):
    def run(self, context, parameters):
        return self.hands.step(context, parameters)
    return tasks.command(module, name)(run)


_Commands = type('_Commands', (periodic.PeriodicTasks,), {
    f'{module}_{name}': _command(module, name)
    for module, names in own_tasks.COMMANDS.items() for name in names})

_Catalogues = type('_Catalogues', (_Commands,), {
    f'list_{job}': _catalogue(job) for job in OBJECTS})


def _spacing(job):
    return POLICIES[job].period / checker.SECOND


def make_tasks(conf, hands):
    """Return an instance of a class that declares all jobs and commands.

    :param hands: the :class:`Hands` that the handlers use. None is allowed if
        no handler runs.
    """

    class Tasks(_Catalogues):

        #: The methods of the commands use this attribute.
        hands = None

        @periodic.periodic_task(spacing=_spacing('poll'), objects='list_poll')
        def poll(self, context, key):
            hands.work(context, 0.02 * _draw(context, 'takes'))

        @periodic.periodic_task(
            spacing=_spacing('each'), objects='list_each', misfire='all',
            overlap='wait', retries=4, priority=1)
        def each(self, context, key):
            hands.work(context, 0.2 * _draw(context, 'takes'), 0.02)

        @periodic.periodic_task(
            spacing=_spacing('flaky'), objects='list_flaky', retries=2)
        def flaky(self, context, key):
            hands.work(context, 0.1, 0.35)

        @periodic.periodic_task(
            spacing=_spacing('wait'), objects='list_wait', overlap='wait',
            retries=1)
        def wait(self, context, key):
            hands.work(context, 1.5 * _draw(context, 'takes'))

        @periodic.periodic_task(
            spacing=_spacing('all'), objects='list_all', misfire='all')
        def all(self, context, key):
            hands.work(context, 0.3)

        @periodic.periodic_task(
            spacing=_spacing('once'), objects='list_once',
            delivery='at_most_once')
        def once(self, context, key):
            hands.work(context, 0.3 * _draw(context, 'takes'))

        @periodic.periodic_task(
            spacing=_spacing('slow'), objects='list_slow', timeout=12.0 * PACE,
            retries=1)
        def slow(self, context, key):
            hands.work(context, 1.0 + 8.0 * _draw(context, 'takes') ** 2)

        @periodic.periodic_task(
            spacing=_spacing('spread'), objects='list_spread', spread=True,
            retries=1)
        def spread(self, context, key):
            hands.work(context, 0.05)

        @periodic.periodic_task(
            spacing=_spacing('own'), objects='list_own', retries=1)
        def own(self, context, one):
            hands.work(context, 0.05)

        @periodic.periodic_task(
            spacing=_spacing('booked'), objects='list_booked', retries=3)
        def booked(self, context, key):
            hands.book(context)

        @periodic.periodic_task(
            spacing=_spacing('narrow'), objects='list_narrow', misfire='all',
            overlap='wait', retries=2, max_in_flight=3)
        def narrow(self, context, key):
            hands.work(context, 0.1 * _draw(context, 'takes'))

        @periodic.periodic_task(spacing=_spacing('rare'), objects='list_rare')
        def rare(self, context, key):
            hands.work(context, 0.05)

        @periodic.periodic_task(cron='* * * * *', objects='list_cron')
        def cron(self, context, key):
            hands.work(context, 0.05)

        @periodic.periodic_task(
            spacing=_spacing('alone'), objects='list_alone', spread=True,
            topic=ALONE)
        def alone(self, context, key):
            # Most of the time, the active worker is in the middle of a run.
            if is_stubborn(key):
                hands.work(context, 1.0 + _draw(context, 'takes'), looks=False)
            else:
                hands.work(context, 0.2 + 0.8 * _draw(context, 'takes'))

        @periodic.periodic_task(spacing=_spacing('group'), scope='group')
        def group(self, context):
            hands.work(context, 0.1)

    made = Tasks(conf)
    made.hands = hands
    return made


def declared():
    """Return the jobs by their names, as a scheduler knows them."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([])
    return make_tasks(conf, None).jobs
