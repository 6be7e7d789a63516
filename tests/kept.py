# SPDX-License-Identifier: Apache-2.0
"""What an object of the product keeps alive, whatever its fields are."""

import array
import collections
import gc
import types

# What may hold more of the same; nothing else is entered but the product.
_HOLD = (list, tuple, dict, set, frozenset, array.array, collections.deque,
         types.MethodType, types.CellType)


def kept(thing, kind):
    """The number of objects of *kind* that *thing* keeps alive.

    Objects of the tests that it refers to, such as a store, are not entered.
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
