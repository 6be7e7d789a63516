# SPDX-License-Identifier: Apache-2.0
"""``distperiodic scheduler`` and ``distperiodic worker``.

These commands report all errors in options, URLs and jobs before the first
fork. An error that appears only in a forked process would end that process,
and each replacement would fail in the same way.
"""

import abc
import argparse
import contextlib
import logging
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic import loading
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.cmd import terminal
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration
from distperiodic.core import member

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.service.lifecycle import Lifecycle

LOG = logging.getLogger(__name__)

_LINE = '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s '
# These libraries log each connection attempt; distperiodic's own log lines
# explain the result.
_QUIET = ['kazoo=ERROR', 'tooz=ERROR', 'cotyledon=WARNING', 'amqp=WARNING',
          'kombu=WARNING', 'oslo.messaging=WARNING',
          'oslo_messaging=WARNING', 'oslo_service=WARNING',
          'stevedore=WARNING']
# These libraries log each of their attempts.
_RETRYING = ('amqp', 'kombu', 'oslo.messaging', 'oslo_messaging')


class _Serve(Configured):
    """Base class of both commands: check everything, launch, and wait."""

    kind = ''
    needs_tasks = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--tasks', required=self.needs_tasks, metavar='MODULE:CLASS',
            help='the PeriodicTasks class of the service, instantiated as '
                 'CLASS(conf). Schedulers and workers need the same class, '
                 'except workers of a partition that has the option handler')
        parser.add_argument(
            '--workers', type=configured.positive, default=1, metavar='N',
            help='number of processes to fork; each has its own member id. '
                 'Default: 1')

    def take_action(self, parsed: argparse.Namespace) -> int:
        from oslo_log import log

        from distperiodic import opts
        conf = configuration(parsed, logs=True)
        if self.app_args is not None and self.app_args.debug:
            conf.set_override('debug', True)
        settings = opts.settings(conf)
        self._check_backend(settings, workers=parsed.workers)
        self._check_store(conf, settings)
        tasks = self._load(conf, settings, parsed)
        self._check_jobs(tasks, parsed)
        self._check_places(conf, settings, parsed)
        conf.set_default('logging_default_format_string',
                         f'{_LINE}%(message)s')
        conf.set_default('logging_exception_prefix', _LINE)
        conf.set_default('default_log_levels',
                         [*log.get_default_log_levels(), *_QUIET])
        log.setup(conf, 'distperiodic')
        repeated = terminal.Repeated(_RETRYING, SystemClock())
        for handler in logging.getLogger().handlers:
            handler.setFormatter(terminal.LogFormatter(
                handler.formatter or logging.Formatter()))
            handler.addFilter(repeated)
        from distperiodic.service import launcher
        service = self._service(conf, tasks, parsed)
        service.load_handlers(settings)
        launcher.launch(conf, service, workers=parsed.workers)
        return 0

    def _check_backend(self, settings: 'opts.Settings',
                       workers: int) -> None:
        from distperiodic.adapters.coordination.url import check_backend_url
        member.check_identity(settings.group)
        if settings.backend_url:
            check_backend_url(settings.backend_url)
        elif self._needs_backend(settings):
            raise exceptions.ConfigError(
                '[distperiodic] backend_url is empty, but schedulers and '
                'workers find each other through the coordination service; '
                'set backend_url in the file that --config-file names, or set '
                'dispatcher = local and run schedulers only')
        elif workers > 1:
            raise exceptions.ConfigError(
                f'--workers {workers} needs [distperiodic] backend_url: '
                'without it each process would run everything; set it, for '
                'example to file:///var/lib/my-service, or give --workers 1')
        if settings.member_id is not None:
            member.check_identity(settings.member_id)
            if workers > 1:
                raise exceptions.ConfigError(
                    f'[distperiodic] member_id {settings.member_id!r} is the '
                    f'name of one process, but --workers {workers} asks for '
                    'several; unset member_id, so that each process gets its '
                    'own number on this host')

    def _check_store(self, conf: 'cfg.ConfigOpts',
                     settings: 'opts.Settings') -> None:
        """Check the store.

        :raises ConfigError: the store cannot be used.
        """
        from distperiodic import store
        # If the store is unavailable, the processes wait for it themselves,
        # and log that they wait.
        with contextlib.suppress(exceptions.StoreUnavailable):
            store.check_store(settings, conf)

    def _load(self, conf: 'cfg.ConfigOpts', settings: 'opts.Settings',
              parsed: argparse.Namespace) -> 'periodic.PeriodicTasks':
        """Return the object that defines the service's jobs and commands.

        :raises ConfigError: the tasks cannot be loaded.
        """
        return loading.load_tasks(parsed.tasks, conf)

    def _needs_backend(self, settings: 'opts.Settings') -> bool:
        return settings.dispatcher == 'messaging'

    def _check_jobs(self, tasks: 'periodic.PeriodicTasks',
                    parsed: argparse.Namespace) -> None:
        """Check that the tasks have a job for this process.

        :raises ConfigError: the tasks have no such job.
        """

    def _check_places(self, conf: 'cfg.ConfigOpts',
                      settings: 'opts.Settings',
                      parsed: argparse.Namespace) -> None:
        """Check the state_path and the broker's URL.

        :raises ConfigError: one of them cannot be used.
        """
        from distperiodic.adapters.local.process_slot import ProcessSlot
        if settings.member_id is None:
            # Release the slot at once, because the forked processes need it.
            ProcessSlot(settings.state_path, 'check').leave()
        if self._needs_backend(settings):
            from distperiodic.adapters.messaging import drivers
            drivers.probes(conf, settings.partitions)

    @abc.abstractmethod
    def _service(self, conf: 'cfg.ConfigOpts',
                 tasks: 'periodic.PeriodicTasks',
                 parsed: argparse.Namespace) -> 'Lifecycle':
        """Return the service that each forked process runs."""


class Scheduler(_Serve):
    """Run scheduler processes, which dispatch the objects that they own.

    On Ctrl-C and SIGTERM, the processes finish the work in progress and end.
    On SIGHUP they reload the mutable options.
    """

    kind = 'scheduler'

    def _check_jobs(self, tasks: 'periodic.PeriodicTasks',
                    parsed: argparse.Namespace) -> None:
        if not tasks.commands and not any(
                job.enabled for job in tasks.jobs.values()):
            raise exceptions.ConfigError(
                f'--tasks {parsed.tasks!r}: all jobs are disabled '
                f'({configured.listed(list(tasks.jobs))}); enable one')

    def _service(self, conf: 'cfg.ConfigOpts',
                 tasks: 'periodic.PeriodicTasks',
                 parsed: argparse.Namespace) -> 'Lifecycle':
        from distperiodic import service
        for job in tasks.jobs.values():
            LOG.info(
                'job: name=%s schedule=%r scope=%s partition=%s enabled=%s '
                'defined=%s', job.name, job.schedule.describe(),
                job.scope.value, job.topic, job.enabled, job.defined_at)
        for job in tasks.commands.values():
            LOG.info('command: name=%s partition=%s defined=%s', job.name,
                     job.topic, job.defined_at)
        return service.SchedulerService(conf, tasks)


class Worker(_Serve):
    """Run worker processes, which run the objects that schedulers send.

    Workers are stateless: start and stop as many as the load needs, at any
    time. On Ctrl-C and SIGTERM they return the waiting objects to the
    schedulers, finish the runs in progress, and end.
    """

    kind = 'worker'
    needs_tasks = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--partition', default='default', metavar='P',
            help='run the jobs whose topic is this partition. '
                 'Default: default')

    def _load(self, conf: 'cfg.ConfigOpts', settings: 'opts.Settings',
              parsed: argparse.Namespace) -> 'periodic.PeriodicTasks':
        parsed.topic = settings.topic_of(parsed.partition)
        tasks = loading.load_handler(conf, settings, parsed.topic)
        if tasks is not None:
            return tasks
        if parsed.tasks is None:
            raise exceptions.ConfigError(
                f'the following arguments are required: --tasks; or set '
                f'handler in [partition:{parsed.partition}]')
        return super()._load(conf, settings, parsed)

    def _needs_backend(self, settings: 'opts.Settings') -> bool:
        return True

    def _check_jobs(self, tasks: 'periodic.PeriodicTasks',
                    parsed: argparse.Namespace) -> None:
        member.check_identity(parsed.partition)
        topics = sorted({job.topic for job in (
            *tasks.jobs.values(), *tasks.commands.values())})
        if parsed.topic not in topics:
            raise exceptions.ConfigError(
                f'--partition {parsed.partition!r}: no job of '
                f'{parsed.tasks!r} has this topic, so no work would arrive; '
                f'the topics are {configured.listed(topics)}')

    def _service(self, conf: 'cfg.ConfigOpts',
                 tasks: 'periodic.PeriodicTasks',
                 parsed: argparse.Namespace) -> 'Lifecycle':
        from distperiodic import service
        return service.WorkerService(conf, tasks, parsed.partition)
