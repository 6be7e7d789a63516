# SPDX-License-Identifier: Apache-2.0
"""``distperiodic dump``: the state of a group, for a report of a bug."""

import argparse
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import Session

# Areas of the checks whose results may contain ids or errors of tasks and
# objects.
_WITH_IDS = 'tasks', 'health', 'partitions'


class Dump(Configured):
    """Write the state of the group as JSON, for a report of a bug.

    Passwords and keys are masked. Ids of objects and of tasks, errors, and the
    texts of operators are left out without --with-ids. A part that cannot be
    read says so, and the exit code is then 1.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--output', metavar='FILE',
            help='write to this file, which only its owner can read; default: '
                 'print it')
        parser.add_argument(
            '--with-ids', action='store_true',
            help='include ids of objects and tasks, errors, and the texts of '
                 'operators')
        parser.add_argument(
            '--since', type=configured.duration, default='6h',
            metavar='TIME', help='age of the oldest ticks and actions, such '
                                 'as 24h; default: 6h')
        parser.add_argument(
            '--timeout', type=configured.seconds, default=60.0, metavar='S',
            help='maximum number of seconds; default: 60')
        configured.add_tasks(
            parser, 'the checks compare its jobs with the jobs of the store')

    def take_action(self, parsed: argparse.Namespace) -> int:
        from distperiodic.operator import dump
        parsed.offline = False
        output = None if parsed.output is None else pathlib.Path(parsed.output)
        if output is not None and not output.parent.is_dir():
            raise exceptions.ConfigError(
                f'{output} cannot be written: {output.parent} is no '
                'directory; give another --output')
        if output is not None and (output.is_symlink() or output.exists()
                                   and not output.is_file()):
            # A replaced device would be lost to all other programs.
            raise exceptions.ConfigError(
                f'{output} is no regular file, so it is not replaced; give '
                'another --output')
        # Threads read the sources, and no two threads share a connection. A
        # connection of a thread that is too late must not be closed here.
        stored, grouped, checked = (Session(parsed, self) for _ in range(3))
        conf = stored.conf
        found = {'format': dump.FORMAT} | dump.read(
            [[('versions', dump.versions),
              ('options', lambda: dump.options(conf))],
             dump.store_parts(
                 stored, parsed.since / 3600, parsed.with_ids),
             dump.group_parts(grouped),
             [('doctor', lambda: list(_doctor(checked, parsed.with_ids)))]],
            parsed.timeout, dump.secrets_of(conf))
        text = json.dumps(found, indent=1, default=str)
        if output is None:
            print(text, file=self.app.stdout)
        else:
            _write(output, text)
        missing = [name for name, part in found.items()
                   if isinstance(part, dict) and 'unavailable' in part]
        if missing and output is not None:
            print(f'not read: {", ".join(missing)}; the file has the reasons',
                  file=self.app.stdout)
        return configured.FINDING if missing else configured.FINE


def _doctor(session: Session, with_ids: bool) -> Iterator[dict[str, str]]:
    """Yield the results of the checks of ``distperiodic doctor``."""
    from distperiodic.cmd import checks
    from distperiodic.cmd import partition_checks  # noqa: F401, registers
    from distperiodic.cmd import store_checks  # noqa: F401
    from distperiodic.cmd import task_checks  # noqa: F401
    from distperiodic.cmd.doctor_facts import DoctorFacts
    for check, result in checks.run_all(DoctorFacts(session)):
        shown = {'area': check.area, 'check': check.name,
                 'result': str(result.result)}
        if with_ids or check.area not in _WITH_IDS:
            shown |= {'finding': result.text, 'remedy': result.remedy}
        yield shown


def _write(path: pathlib.Path, text: str) -> None:
    """Replace the file *path*.

    :raises ConfigError: the file cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(
                'w', dir=path.parent, delete=False) as file:
            file.write(f'{text}\n')
        os.replace(file.name, path)
    except OSError as exc:
        raise exceptions.ConfigError(
            f'{path} cannot be written: {exc.strerror}; give another '
            '--output') from exc
