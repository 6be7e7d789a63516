# SPDX-License-Identifier: Apache-2.0
"""Count of the objects that an object of the product keeps alive in its
fields.
"""

import array
import collections
import gc
import types

# Types into which the search descends, in addition to the classes of the
# product.
_HOLD = (list, tuple, dict, set, frozenset, array.array, collections.deque,
         types.MethodType, types.CellType)


def kept(thing, kind):
    """Return the number of objects of *kind* that *thing* keeps alive.

    The search does not enter objects of the tests, such as a store.
    """
    found, queue = {id(thing): thing}, [thing]
    while queue:
        for one in gc.get_referents(queue.pop()):
            if id(one) in found or isinstance(one, (type, types.ModuleType)):
                continue
            found[id(one)] = one
            if isinstance(one, _HOLD) or type(one).__module__.startswith(
                    'distperiodic.'):
                queue.append(one)
    return sum(isinstance(one, kind) for one in found.values())
