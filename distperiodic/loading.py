# SPDX-License-Identifier: Apache-2.0
"""Loading of :class:`~distperiodic.periodic.PeriodicTasks` classes by name.

The name comes from the command line or from an option. This module imports
``periodic`` and the module of the class only when it loads a class, so that
other commands start fast.
"""

import importlib
import importlib.metadata
import os
import sys
import traceback
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.core.suggestion import did_you_mean

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import periodic

#: Group of the entry points that name classes of tasks.
ENTRY_POINTS = 'distperiodic.handlers'


def load_handler(conf: 'cfg.ConfigOpts', settings: 'opts.Settings',
                 topic: str,
                 given: 'periodic.PeriodicTasks | None' = None
                 ) -> 'periodic.PeriodicTasks | None':
    """Return an instance of the class that a partition's ``handler`` names.

    :param topic: Topic of the jobs of the partition.
    :param given: Instance that the program has already created. If the option
        ``handler`` names its class, this instance is returned.
    :returns: The instance. None means that the option is not set.
    :raises ConfigError: The class cannot be loaded, or has no job of *topic*.
    """
    partition = settings.partitions.get(topic)
    if partition is None or partition.handler is None:
        return None
    option = f'[partition:{partition.name}] handler ='
    tasks = load_tasks(_path_of(partition.handler, option), conf, option,
                       given)
    topics = sorted({job.topic for job in (
        *tasks.jobs.values(), *tasks.commands.values())})
    if topic not in topics:
        raise exceptions.ConfigError(
            f'{option} {partition.handler!r} has no job with topic {topic!r}; '
            f'the topics of its jobs are {", ".join(topics)}')
    return tasks


def _path_of(handler: str, option: str) -> str:
    """Return MODULE:CLASS for the value of an option.

    :param handler: Either MODULE:CLASS or the name of an entry point.
    :raises ConfigError: There is no such entry point.
    """
    if ':' in handler:
        return handler
    known = {one.name: one.value for one in importlib.metadata.entry_points(
        group=ENTRY_POINTS)}
    if handler not in known:
        raise exceptions.ConfigError(
            f'{option} {handler!r} is not an entry point of the group '
            f'{ENTRY_POINTS}, which has '
            f'{", ".join(map(repr, sorted(known))) or "none"}; correct the '
            'name, install its package, or give MODULE:CLASS')
    return known[handler]


def load_class(path: str, option: str = '--tasks') -> type:
    """Return the class that MODULE:CLASS names.

    The module must be on the import path or in the current directory.

    :param option: Option from which *path* comes, for error messages.
    :raises ConfigError: The class cannot be loaded. The message gives the
        reason.
    """
    module_name, colon, class_name = path.partition(':')
    if not (module_name and colon and class_name):
        raise exceptions.ConfigError(
            f'{option} {path!r} is not MODULE:CLASS; write for example '
            'myservice.tasks:NodeTasks')
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (
                f'{module_name}.'.startswith(f'{exc.name}.')):
            raise _not_importable(path, option, exc) from exc
        raise exceptions.ConfigError(
            f'{option} {path!r}: there is no module {exc.name!r} in '
            f'{here} or on the import path; correct the name, or set '
            'PYTHONPATH') from exc
    except exceptions.DistperiodicError as exc:
        raise exceptions.ConfigError(f'{option} {path!r}: {exc}') from exc
    except Exception as exc:
        raise _not_importable(path, option, exc) from exc
    found: Any = module
    for name in class_name.split('.'):
        within, found = found, getattr(found, name, None)
        if found is None:
            raise exceptions.ConfigError(
                f'{option} {path!r}: {within.__name__} has no class {name!r}'
                + _hint(name, [n for n, v in vars(within).items()
                               if isinstance(v, type)]))
    from distperiodic import periodic
    if not (isinstance(found, type)
            and issubclass(found, periodic.PeriodicTasks)):
        raise exceptions.ConfigError(
            f'{option} {path!r} is not a PeriodicTasks class; derive it from '
            'distperiodic.PeriodicTasks')
    return found


def load_tasks(path: str, conf: 'cfg.ConfigOpts',
               option: str = '--tasks',
               given: 'periodic.PeriodicTasks | None' = None
               ) -> 'periodic.PeriodicTasks':
    """Return ``CLASS(conf)`` for the class that *path* names.

    :param option: Option from which *path* comes, for error messages.
    :param given: Instance that the program has already created. If its type is
        this class, it is returned instead.
    :raises ConfigError: There is no such class, its constructor raised an
        exception, or the class has no jobs.
    """
    cls = load_class(path, option)
    if given is not None and type(given) is cls:
        return given
    try:
        tasks: periodic.PeriodicTasks = cls(conf)
        jobs = {**tasks.jobs, **tasks.commands}
    except exceptions.DistperiodicError as exc:
        raise exceptions.ConfigError(f'{option} {path!r}: {exc}') from exc
    except Exception as exc:
        raise exceptions.ConfigError(
            f'{option} {path!r}: {cls.__name__}(conf) raised '
            f'{type(exc).__name__}: {exc} ({_place(exc)}); correct the '
            'error; the constructor must take the configuration as its only '
            'argument') from exc
    if not jobs:
        raise exceptions.ConfigError(
            f'{option} {path!r} has no jobs; decorate its methods with '
            'distperiodic.periodic_task')
    return tasks


def _hint(name: str, classes: list[str]) -> str:
    """Return the remedy in an error message about an unknown class."""
    return did_you_mean(name, classes) or (
        f'; it has {", ".join(classes)}: correct the name' if classes
        else '; correct the name')


def _not_importable(path: str, option: str,
                    exc: Exception) -> exceptions.ConfigError:
    text = exc.msg if isinstance(exc, SyntaxError) else exc
    return exceptions.ConfigError(
        f'{option} {path!r}: importing it raised {type(exc).__name__}: {text} '
        f'({_place(exc)}); correct the module')


def _place(exc: BaseException) -> str:
    """Return the file and line that raised *exc*, such as 'tasks.py:41'."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f'{os.path.basename(exc.filename)}:{exc.lineno}'
    every = traceback.extract_tb(exc.__traceback__)
    frames = [f for f in every if not f.filename.startswith('<')] or every
    return (f'{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}'
            if frames else 'unknown place')
