# SPDX-License-Identifier: Apache-2.0
"""All bugs that are planted in worlds, by name."""

from tests.simulation import bugs
from tests.simulation import task_bugs

BUGS = {**bugs.BUGS, **task_bugs.BUGS}
