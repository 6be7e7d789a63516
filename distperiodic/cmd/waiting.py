# SPDX-License-Identifier: Apache-2.0
"""``distperiodic waiting``: the work that waits for a worker."""

from distperiodic.cmd import display
from distperiodic.operator.lists import waiting_list


class WaitingList(waiting_list.WaitingJobs, display.List):
    pass
