# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes, and the record of its handlers."""

import collections
import time
import uuid

from distperiodic import coordinator
from tests import forks
from tests import programs
from tests import waiting
from tests.functional import served
from tests.logged import written

_OWN = {option.name for option in served.OPTS}


class Run(collections.namedtuple(
        'Run', 'event job object tick pid at fence attempt '
        'mine accepted finished progress')):
    """One line of the record. Values that the line does not have are None."""

    @property
    def key(self):
        return self.job, self.object, self.tick

    @property
    def late(self):
        return self.at - self.tick


class Program(forks.Program):
    """One program that runs a service; see :mod:`tests.functional.served`."""

    def __init__(self, kind, config, record, workers, log, *more):
        super().__init__(
            [*programs.PYTHON, '-m', 'tests.functional.served', kind, config,
             record, workers, *more], log)
        self.kind = kind


class Cluster:
    """Schedulers and workers of one group.

    :param options: options of the section [distperiodic] and, by name, of
        :data:`tests.functional.served.OPTS`.
    """

    def __init__(self, place, backend_url, transport_url=None, **options):
        self.place = place
        self.record = place / 'record.jsonl'
        self.record.touch()
        self.backend_url = backend_url
        self.group = f'test-{uuid.uuid4().hex[:8]}'
        self.options = {
            'backend_url': backend_url, 'group': self.group,
            'session_timeout': 2, 'late_claim_after': 2,
            'state_path': place / 'state',
            'dispatcher': 'messaging' if transport_url else 'local',
            'pool_size': 4}
        self.default = {'graceful_shutdown_timeout': 20}
        if transport_url:
            self.default['transport_url'] = transport_url
        #: Additional sections of the configuration, by name.
        self.sections = {}
        self.set(**options)
        self.programs = []

    def set(self, **options):
        """Change options in the file that all programs read."""
        for name, value in options.items():
            own = name in _OWN
            (self.default if own else self.options)[name] = value
        self.config = programs.write_config(
            self.place / 'service.conf', DEFAULT=self.default,
            distperiodic=self.options, **self.sections)

    def set_section(self, name, **options):
        self.sections[name] = options
        self.set()

    @property
    def connection(self):
        """The URL of the store, which may be a file that the service creates.
        """
        return self.options.get('connection') or (
            f'sqlite:///{self.options["state_path"]}/{self.group}.sqlite')

    def start(self, kind, workers=1, *more):
        program = Program(kind, self.config, self.record, workers,
                          self.place / f'{kind}-{len(self.programs)}.log',
                          *more)
        self.programs.append(program)
        return program

    def observe(self, partition=None):
        """Return an observer of the schedulers, or of the workers of a
        partition.
        """
        group = self.group if partition is None else (
            f'{self.group}.workers.{partition}')
        return Observer(self.backend_url, group)

    def runs(self, event='start', job='ping'):
        return [Run(*(values.get(field) for field in Run._fields))
                for values in programs.records(self.record)
                if values['event'] == event and values['job'] == job]

    def complete_ticks(self, job='ping'):
        """Return the ticks for which every object has started, in order."""
        started = collections.defaultdict(set)
        for run in self.runs(job=job):
            started[run.tick].add(run.object)
        return sorted(t for t, objects in started.items()
                      if len(objects) == self.default.get('objects', 60))

    def wait_complete(self, ticks=1, after=0.0, timeout=60.0):
        """Wait for this number of complete ticks later than *after*.

        :param timeout: Seconds from the first run of the cluster.
        """
        if not self.runs():
            self.wait_begun(timeout=programs.STARTING)
        return waiting.wait_until(
            lambda: (lambda found: len(found) >= ticks and found)(
                [t for t in self.complete_ticks() if t > after]),
            timeout, f'no {ticks} complete ticks after {after}; see the '
            f'logs in {self.place}', interval=0.1)

    def is_between_ticks(self):
        """Return True if all runs of the newest tick have begun, and the next
        tick is not due yet.

        At any other time a process may be about to call a handler. If the
        process is suspended then, the run begins when the process resumes.
        """
        begun = self.complete_ticks()
        return bool(begun) and (
            time.time() < begun[-1] + self.default.get('spacing', 1.0))

    def wait_begun(self, after=0.0, timeout=30.0):
        """Wait until a run of a tick later than *after* has begun."""
        return waiting.wait_until(
            lambda: [r for r in self.runs() if r.tick > after], timeout,
            f'no run after tick {after}; see the logs in {self.place}',
            interval=0.005)

    def logs(self):
        return ''.join(p.said() for p in self.programs)

    def logged(self, event=None):
        """Return the lines of *event* of all programs. None means all lines.
        """
        return written(self.logs(), event)

    def close(self):
        for program in self.programs:
            program.kill()


class Observer(coordinator.Coordinator):
    """Observes a group without being a member."""

    def __init__(self, url, group):
        super().__init__(url, session_timeout=2)
        from distperiodic.adapters.coordination import membership
        from distperiodic.adapters.local.clock import SystemClock
        self.group = group
        self.seen = membership.ToozMembership(
            url, 'observer', clock=SystemClock(), session_timeout=2)
        self.seen.watch(group)
        self.seen.start()
        self.seen.wait_joined(10)

    @property
    def now(self):
        return self.seen.view(self.group)

    def wait_members(self, number, timeout=60.0):
        waiting.wait_until(
            lambda: len(self.now.members) == number, timeout,
            f'group {self.group} did not reach {number} members',
            interval=0.01)
        return self.now

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.seen.stop()
