# SPDX-License-Identifier: Apache-2.0
"""``distperiodic events``: the recorded actions of operators."""


from distperiodic.cmd import display
from distperiodic.operator.lists import event_list


class Events(event_list.Actions, display.List):
    pass
