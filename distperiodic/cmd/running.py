# SPDX-License-Identifier: Apache-2.0
"""``distperiodic running``: the runs in progress, with worker and age."""


from distperiodic.cmd import display
from distperiodic.operator.lists import run_list


class Running(run_list.Runs, display.List):
    pass
