# SPDX-License-Identifier: Apache-2.0
"""``distperiodic objects``: when each object was last served."""


from distperiodic.cmd import display
from distperiodic.operator.lists import object_list


class Objects(object_list.ServedObjects, display.List):
    pass
