# SPDX-License-Identifier: Apache-2.0
"""All planted bugs, by name."""

from tests.simulation import bugs
from tests.simulation import task_bugs

BUGS = {**bugs.BUGS, **task_bugs.BUGS}
