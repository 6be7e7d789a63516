# SPDX-License-Identifier: Apache-2.0
"""``distperiodic running``: the runs in progress, with worker and age."""

from typing import TYPE_CHECKING

from distperiodic.cmd import display
from distperiodic.operator.lists import run_list

if TYPE_CHECKING:
    pass


class Running(run_list.Runs, display.List):
    pass
