# SPDX-License-Identifier: Apache-2.0
"""Checks of options, tables and jobs before a service starts."""

import contextlib
import logging
import sys
import threading

from oslo_config import cfg
from oslo_service import backend

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import periodic
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.adapters.local import tracing
from distperiodic.adapters.messaging import drivers
from distperiodic.core import definitions
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.service import metrics_endpoint
from distperiodic.store import check_store

LOG = logging.getLogger(__name__)


def check_options(conf: cfg.ConfigOpts, kind: str) -> opts.Settings:
    """Return the options of *conf* for a service of this kind.

    :param kind: 'scheduler' or 'worker'.
    :raises ConfigError: An option cannot be used.
    """
    settings = opts.settings(conf)
    if settings.backend_url:
        check_backend_url(settings.backend_url)
    elif settings.dispatcher == 'messaging' or kind == 'worker':
        raise exceptions.ConfigError(
            '[distperiodic] backend_url is empty, but schedulers and workers '
            'find each other through it; set it, or set dispatcher = local '
            'and run schedulers only')
    if settings.connection:
        # Load SQLAlchemy only if there is a database.
        from distperiodic.adapters.sql import engine

        engine.check(settings.connection)
    return settings


def check(conf: cfg.ConfigOpts, tasks: periodic.PeriodicTasks) -> None:
    """Check whether a scheduler of *tasks* can start.

    Call this before the fork. If an error appears only in a forked process, it
    ends that process, and each replacement fails in the same way. A database
    or broker that is merely unavailable is not an error.

    :param conf: Configuration of the service, with its files read.
    :param tasks: The tasks that the scheduler will run.
    :raises ConfigError: An option, a URL, a job or the store's tables cannot
        be used. The message names the remedy.
    """
    check_service(conf, tasks, 'scheduler')


def check_service(conf: cfg.ConfigOpts, tasks: periodic.PeriodicTasks,
                  kind: str) -> opts.Settings:
    """Check whether a service of this kind can start; see :func:`check`.

    :param kind: 'scheduler' or 'worker'.
    :returns: The options of the service.
    """
    check_backend()
    settings = check_options(conf, kind)
    if not (tasks.jobs or tasks.commands):
        raise exceptions.ConfigError(
            f'{type(tasks).__name__} has no jobs; decorate its methods with '
            'distperiodic.periodic_task')
    if not (tasks.jobs or settings.connection):
        raise exceptions.ConfigError(
            f'{type(tasks).__name__} has commands of tasks only, and tasks '
            'need a store; set [distperiodic] connection')
    metrics_endpoint.check(settings)
    if settings.traces:
        tracing.require(f'[{opts.GROUP}] traces')
    with contextlib.suppress(exceptions.StoreUnavailable):
        check_store(settings, conf)
    if settings.dispatcher == 'messaging' or kind == 'worker':
        drivers.probes(conf, settings.partitions)
    return settings


def warn_of_options(conf: cfg.ConfigOpts) -> None:
    """Log the options that have no effect, because they are misspelt.

    They are no error: without them, the service may run as intended. But a
    misspelt ``backend_url`` makes each process the owner of every object.
    """
    with contextlib.suppress(exceptions.ConfigError):
        for option in opts.unknown(conf):
            LOG.warning(
                'option unknown: option=%s; it has no effect, and this '
                'process runs without it; correct its name or section, or '
                'remove it', option)


def warn_of_workflows(settings: opts.Settings, tasks: periodic.PeriodicTasks,
                      kind: str) -> None:
    """Log errors in the file of the workflows.

    The jobs of a service do not need this file, and neither do submitted
    tasks. So an error in the file does not prevent the start of the service.

    :param kind: 'scheduler' or 'worker'.
    """
    if not (tasks.commands and settings.workflows):
        return
    # Load YAML only if there is a file.
    from distperiodic.adapters.local.workflow_file import read_workflows
    try:
        workflows = read_workflows(settings.workflows)
    except exceptions.InvalidWorkflow as exc:
        LOG.warning(
            'workflows unusable: error=%s; this service runs without them, '
            'but no task of their types can be submitted with this file; '
            'correct it', exc)
        return
    if kind != 'scheduler':
        # Other workers may have the commands that this worker lacks.
        return
    unknown = {name: types for name, types
               in definitions.types_by_command(workflows).items()
               if COMMAND_PREFIX + name not in tasks.commands}
    if unknown:
        LOG.warning(
            'workflows with unknown commands: commands=%s types=%s; a step '
            'with such a command waits until a scheduler knows it; correct '
            'the file, or start the schedulers with a class that defines them',
            ','.join(sorted(unknown)),
            ','.join(sorted({one for types in unknown.values()
                             for one in types})))


def check_main_thread(call: str, instead: str) -> None:
    """Check that this thread may handle signals.

    :param call: The call that handles signals.
    :param instead: What a program can do in another thread.
    :raises RuntimeError: This is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f'{call} handles signals, and thread '
            f'{threading.current_thread().name!r} is not the main thread; '
            f'in another thread, {instead}')


def check_backend() -> None:
    """Check that threads run under the chosen backend of oslo.service.

    :raises ConfigError: The backend is eventlet and threads are not patched.
    """
    if backend.get_backend_type() is not backend.BackendType.EVENTLET:
        return
    patcher = sys.modules.get('eventlet.patcher')
    if patcher is None or not patcher.is_monkey_patched('thread'):
        raise exceptions.ConfigError(
            'oslo.service runs on eventlet in this process and its threads '
            'are not patched, so no job would ever run; call '
            'oslo_service.backend.init_backend(BackendType.THREADING) before '
            'anything of oslo.service or oslo.messaging is imported')
