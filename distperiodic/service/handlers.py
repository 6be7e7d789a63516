# SPDX-License-Identifier: Apache-2.0
"""The threads and processes that run the handlers of one service.

Each partition has its own pool of threads. With ``executor = process``, each
thread of the pool passes its handlers to a process.
"""

import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import periodic
from distperiodic import ports
from distperiodic.adapters.local import forks
from distperiodic.adapters.local.pool import Pools
from distperiodic.adapters.local.process_links import Call
from distperiodic.adapters.local.processes import Processes
from distperiodic.adapters.local.tracing import TRACING
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.control import MemberOutcome
from distperiodic.core.job import Job
from distperiodic.flow.run_leases import RunLeases
from distperiodic.flow.worker import runs


class Handlers:
    """The pools of one service, and the executor that uses them.

    :param jobs: Job and handler by the job's name.
    :param tasks: Object that defines the handlers, by topic.
    :param grants: Returns the component that holds the granted runs. None
        means that no runs of this service are in a store.
    :raises ConfigError: The processes cannot build the tasks.
    """

    def __init__(self, jobs: Mapping[str, tuple[Job, Callable[..., Any]]],
                 tasks: Mapping[str, periodic.PeriodicTasks], *,
                 conf: cfg.ConfigOpts, settings: opts.Settings,
                 clock: ports.Clock, callbacks: runs.RunCallbacks,
                 grants: Callable[[], RunLeases | None]):
        self._settings = settings
        self._grants = grants
        self._pools = Pools('distperiodic-run', {
            topic: settings.pool_size_of(topic) for topic in tasks})
        #: Processes of the partitions with ``executor = process``, by topic.
        self._processes: dict[str, Processes] = {}
        isolated = self._isolate(conf, tasks)
        self.executor = runs.Executor(
            {name: runs.Handled(job, forks.ends_forked(handler),
                                isolated.get(job.topic))
             for name, (job, handler) in jobs.items()},
            clock=clock, pool=self._pools, callbacks=callbacks,
            finish=self._finisher(), lease=settings.lease,
            slots=lambda: self._pools.size, tracer=TRACING.tracer)

    def _finisher(self) -> (
            Callable[[message.Batch, str, Any, str | None], None] | None):
        """Return a function that ends a run in the handler's own transaction.

        :return: The function, or None if there is no store.
        """
        if not self._settings.connection:
            return None
        from distperiodic.adapters.sql.session import finish_in

        def finish(batch: message.Batch, key: str, session: Any,
                   result: str | None) -> None:
            found = self._grants()
            lease = found and found.lease_of(batch)
            if not lease or not finish_in(
                    session, namespace=self._settings.group, job=batch.job,
                    key=key, lease=lease, result=result):
                raise exceptions.RunReplaced(
                    f'the run of job {batch.job!r} object {key!r} was given '
                    'to another worker; roll back its changes')
        return finish

    def _isolate(self, conf: cfg.ConfigOpts,
                 tasks: Mapping[str, periodic.PeriodicTasks]
                 ) -> Mapping[str, runs.Isolated]:
        """Return the functions that run handlers in processes, by topic.

        The result contains only topics with ``executor = process``.

        :raises ConfigError: The processes cannot build the tasks.
        """
        settings = self._settings
        found: dict[str, runs.Isolated] = {}
        for topic, defined in tasks.items():
            partition = settings.partitions.get(topic)
            if partition is None or partition.executor != 'process':
                continue
            pool = Processes(defined, opts.files(conf), settings.group,
                             settings.pool_size_of(topic))
            self._processes[topic] = pool

            def isolated(batch: message.Batch, run: RunInput,
                         context: Context, arguments: tuple[Any, ...],
                         timeout: float | None, pool: Processes = pool
                         ) -> str | None:
                found = self._grants()

                def until() -> float:
                    if found is None or batch.authority is not Authority.STORE:
                        return math.inf
                    return found.runs_until(batch)
                return pool.run(Call(
                    run, (batch.progress or {}).get(run.object, 'null'),
                    (found and found.lease_of(batch)) or '', until(),
                    arguments, None if TRACING.tracer is None
                    else TRACING.tracer.current()), context, timeout, until)
            found[topic] = isolated
        return found

    def pools(self) -> dict[str, dict[str, int]]:
        """Return the numbers of threads and of queued objects, by topic."""
        queued = self.executor.queued()
        return {topic: pool | {'queued': queued.get(topic, 0)}
                for topic, pool in self._pools.status().items()}

    def resize(self, size: int | None) -> MemberOutcome:
        """Set the number of threads of each pool.

        :param size: None means that the option ``pool_size`` applies.
        """
        limits = {topic: self._settings.pool_size_of(topic)
                  for topic in self._pools.status()}
        sizes = limits if size is None else dict.fromkeys(limits, size)
        for topic in self._processes:
            # A process pool cannot grow.
            sizes[topic] = min(sizes[topic], limits[topic])
        self._pools.resize(sizes)
        text = 'pool_size is ' + ', '.join(
            map(str, sorted(set(sizes.values()))))
        if size is not None and min(sizes.values()) < size:
            smaller = ', '.join(sorted(
                topic for topic in sizes if sizes[topic] < size))
            return MemberOutcome(False, (
                f'{text}, not {size}: the handlers of {smaller} run in '
                'processes, and their number cannot grow until a restart '
                'with a larger pool_size'))
        return MemberOutcome(True, text)

    def stop_threads(self) -> None:
        """Start no more handlers; return at once."""
        self._pools.stop()

    def close_processes(self) -> None:
        """End the processes."""
        for processes in self._processes.values():
            processes.close()
