# SPDX-License-Identifier: Apache-2.0
"""Commands in forks of a process that has imported the product."""

import gc
import importlib.metadata
import os
import sys

from distperiodic.adapters.coordination import membership
from distperiodic.adapters.sql import store
from distperiodic.adapters.sql import task_store
from distperiodic.cmd import shell

#: Modules that commands import when they run.
IMPORTED = (membership, store, task_store, *(
    entry.load() for group in (
        'cliff.formatter.list', 'cliff.formatter.show', 'distperiodic.cli')
    for entry in importlib.metadata.entry_points(group=group)))

# Otherwise each fork would visit all these objects, and copy their pages.
gc.collect()
gc.freeze()


def main(argv, cwd, environment, output, errors):
    """Run a command, and end this process with its exit code.

    :param output: File for the standard output.
    :param errors: File for the standard error.
    """
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, path, mode in ((0, os.devnull, os.O_RDONLY),
                               (1, output, os.O_WRONLY),
                               (2, errors, os.O_WRONLY)):
        place = os.open(path, mode)
        os.dup2(place, number)
        os.close(place)
    sys.argv[:] = [shell.__file__, *argv]
    sys.exit(shell.main(argv))
