# SPDX-License-Identifier: Apache-2.0
"""The attributes that a catalogue gives to single objects.

They are read, compared, stored and returned as one value. Each field has the
name of its column in the table of claims.
"""

from typing import Any
from typing import NamedTuple


class Attributes(NamedTuple):
    """The attributes of one object; the defaults are those of most objects."""

    #: Text of the object's own schedule. Empty means the schedule of its job.
    rule: str = ''


#: The only instance for all objects without attributes of their own.
PLAIN = Attributes()
_PLAIN_VALUES = [*PLAIN]


def attributes_of(values: list[Any]) -> Attributes:
    """Return the attributes with these *values*, in the order of the fields.
    """
    return PLAIN if values == _PLAIN_VALUES else Attributes(*values)
