# SPDX-License-Identifier: Apache-2.0
"""Choice whether the libraries of this package import eventlet.

tooz imports futurist, and futurist imports eventlet if it is installed. This
takes a quarter of the CPU time of a command. A host may use eventlet through
futurist, so only a program that sets :data:`wanted` to False does without it.
"""

import contextlib
import sys
from collections.abc import Iterator

#: False if no code of this process uses eventlet through futurist.
wanted = True


@contextlib.contextmanager
def unless_wanted() -> Iterator[None]:
    """Keep libraries from importing eventlet, unless it is wanted.

    Modules that are imported later may import eventlet themselves.
    """
    if wanted or 'eventlet' in sys.modules:
        yield
        return
    # For Python, None means that the module does not exist.
    sys.modules['eventlet'] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules['eventlet']
