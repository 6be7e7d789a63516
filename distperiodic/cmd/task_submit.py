# SPDX-License-Identifier: Apache-2.0
"""``distperiodic task submit``: submit a task, and optionally wait for it."""

import argparse
import collections
import contextlib
import datetime
import json
import math
import sys
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core import schedule
from distperiodic.core.workflow import Status

# Maximum number of bytes of the JSON text of parameters. It may have many
# spaces and escapes.
_LONGEST = 16_000_000


if TYPE_CHECKING:
    from distperiodic import tasks


class TaskSubmit(RecordedCommand):
    """Submit a task, and print its id.

    With --wait the exit code is 0 if the task succeeds, and 1 if it fails, is
    cancelled, is stuck, or has not ended in time.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            'type', metavar='TYPE',
            help='type of a workflow, or MODULE.COMMAND for a task of one '
                 'step')
        parser.add_argument(
            '--param', action='append', default=[], type=parameter,
            metavar='KEY=VALUE',
            help='a parameter of the task; a VALUE that is valid JSON is read '
                 'as JSON, and any other VALUE as text; may be repeated')
        parser.add_argument(
            '--json', metavar='FILE',
            help='read the parameters from this file, a JSON dictionary; - '
                 'reads standard input; --param takes precedence')
        parser.add_argument(
            '--key', metavar='KEY',
            help='your own name for the task; if a task with this key exists, '
                 'nothing is submitted, and the id of that task is printed')
        parser.add_argument(
            '--queue', metavar='QUEUE',
            help='ordered queue, whose tasks run one at a time')
        parser.add_argument(
            '--at', type=start, metavar='TIME',
            help='earliest start: an instant with its zone, such as '
                 '2026-01-31T06:00Z, or a time from now, such as +10m')
        parser.add_argument(
            '--priority', type=int, default=0, metavar='N',
            help='tasks with a higher priority are claimed first; default: 0')
        parser.add_argument(
            '--wait', nargs='?', const=math.inf, type=configured.seconds,
            metavar='SECONDS',
            help='wait until the task has ended or is stuck, for at most '
                 'SECONDS; without SECONDS there is no limit')

    def act(self, session: Session) -> None:
        parsed = session.parsed
        parameters = {} if parsed.json is None else read_json(parsed.json)
        given = dict(parsed.param)
        if len(given) < len(parsed.param):
            names = [name for name, _ in parsed.param]
            raise exceptions.ConfigError(
                f'--param {max(names, key=names.count)!r} is given more than '
                'once; give each parameter once')
        settings = session.check_store(must_exist=False)
        client = session.open_client(settings)
        if settings.embedded:
            # Create a missing store now: the record of the action needs the
            # store before the client creates it.
            from distperiodic.store import check_store
            check_store(settings, session.conf)
        # The parameters are not recorded: they may be secret.
        with session.recorded(
                parsed.type, key=parsed.key, queue=parsed.queue,
                at=None if parsed.at is None else parsed.at.isoformat(),
                priority=parsed.priority or None) as record:
            task = client.submit(
                parsed.type, {**parameters, **given}, key=parsed.key,
                queue=parsed.queue, at=parsed.at, priority=parsed.priority)
            record.outcome = f'task {task}'
        session.print(task)
        if parsed.wait is not None:
            _check_success(client.wait(
                task, None if parsed.wait == math.inf else parsed.wait),
                parsed.wait)


def _check_success(task: 'tasks.Task', seconds: float) -> None:
    """Check that a task has succeeded.

    :raises DistperiodicError: The task has not succeeded.
    """
    if task.status is Status.SUCCEEDED:
        return
    show = f'distperiodic task show {task.id}'
    if not task.ended and task.status is not Status.STUCK:
        raise exceptions.DistperiodicError(
            f'task {task.id} has not ended after {seconds:g} s: it is '
            f'{task.status.replace("_", " ")}; to see why: {show}')
    why = f' ({configured.one_line(task.message)})' if task.message else ''
    state = {Status.FAILED: 'failed and was rolled back',
             Status.STUCK: 'is stuck and needs an operator',
             Status.CANCELLED: 'was cancelled'}[task.status]
    raise exceptions.DistperiodicError(
        f'task {task.id} {state}{why}; see: {show}')


def parameter(text: str) -> tuple[str, object]:
    """Parse an option that is a parameter, KEY=VALUE."""
    name, found, value = text.partition('=')
    if not found or not name:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not KEY=VALUE; write for example Host=h7')
    with contextlib.suppress(ValueError, RecursionError):
        return name, _loads(value)
    return name, value


def read_json(path: str) -> dict[str, object]:
    """Return the dictionary in a file, or in standard input for ``-``.

    :raises ConfigError: The file cannot be read, or is not a dictionary.
    """
    shown = 'standard input' if path == '-' else path
    try:
        if path == '-':
            content = sys.stdin.buffer.read(_LONGEST + 1)
        else:
            with open(path, 'rb') as file:
                content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise exceptions.ConfigError(
                f'{shown}: longer than {_LONGEST} bytes; store the data '
                'elsewhere, and its location in the parameters')
        found = _loads(content.decode('utf-8-sig'))
    except OSError as exc:
        raise exceptions.ConfigError(
            f'--json {path!r}: {exc.strerror or exc}; correct the path'
        ) from None
    except json.JSONDecodeError as exc:
        raise exceptions.ConfigError(
            f'{shown}:{exc.lineno}:{exc.colno}: {exc.msg}; give a JSON '
            'dictionary') from None
    except RecursionError:
        raise exceptions.ConfigError(
            f'{shown}: the values are nested too deeply; give a JSON '
            'dictionary with fewer levels') from None
    except ValueError as exc:
        raise exceptions.ConfigError(
            f'{shown}: {exc}; give a JSON dictionary in UTF-8') from None
    if not isinstance(found, dict):
        kind = {list: 'a list', str: 'a text', bool: 'true or false',
                type(None): 'null'}.get(type(found), 'a number')
        raise exceptions.ConfigError(
            f'{shown}: the JSON value is {kind}; give a dictionary of '
            'parameters, such as {"Host": "h7"}')
    return found


def _loads(text: str) -> Any:
    """Parse a JSON text, and return its value.

    :raises ValueError: The text is not JSON, or contains a key twice.
    """
    return json.loads(text, parse_constant=_refuse_constant,
                      object_pairs_hook=_unique)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON')


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = collections.Counter(names).most_common(1)[0][0]
        raise ValueError(f'the key {twice!r:.100} is given twice')
    return found


def start(text: str) -> datetime.datetime:
    """Parse an option that is an instant, or a time from now."""
    if text.startswith('+'):
        with contextlib.suppress(argparse.ArgumentTypeError):
            return schedule.datetime_of(
                SystemClock().now() + round(configured.duration(text[1:])
                                            * 1e6))
    with contextlib.suppress(ValueError, OverflowError):
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise argparse.ArgumentTypeError(
                f'{text!r} has no time zone; append Z for UTC, or an offset '
                'such as +02:00')
        return at.astimezone(datetime.UTC)
    raise argparse.ArgumentTypeError(
        f'{text!r} cannot be used; give an instant with its zone, such as '
        '2026-01-31T06:00Z, whose year in UTC is from 1 to 9999, or a time '
        'from now, such as +10m')
