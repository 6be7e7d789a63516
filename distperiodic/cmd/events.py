# SPDX-License-Identifier: Apache-2.0
"""``distperiodic events``: the recorded actions of operators."""

from typing import TYPE_CHECKING

from distperiodic.cmd import display
from distperiodic.operator.lists import event_list

if TYPE_CHECKING:
    pass


class Events(event_list.Actions, display.List):
    pass
