# SPDX-License-Identifier: Apache-2.0
"""Helpers for catalogues in SQL: read only the objects that a member owns.

Add an indexed column to the table of objects, and fill it once per row with
:func:`position_of`. A catalogue method with a parameter ``arcs`` then reads
only the rows that its member owns, whatever the size of the table:

.. code-block:: python

    def nodes(self, context, arcs):
        return session.scalars(
            select(Node).where(in_arcs(Node.position, arcs)))
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from distperiodic.core import ring
from distperiodic.core.catalogue import id_of

__all__ = ['in_arcs', 'position_of']


def position_of(obj: Any) -> int:
    """Return the position of an object on the ring, to store in its row.

    :param obj: An object with an ``id``, or an id (str or int).
    :returns: Signed 64-bit integer, for a ``BigInteger`` column.
    :raises InvalidObject: The object has no usable id.
    """
    return ring.position_of(id_of(obj))


def in_arcs(column: Any,
            arcs: Sequence[ring.Arc]) -> sa.ColumnElement[bool]:
    """Return a predicate: the position in *column* lies on one of *arcs*.

    The predicate is an OR of ranges, for which all databases can use an index
    on the column.

    :param column: Column of type ``BigInteger``, filled by
        :func:`position_of`.
    :param arcs: The arcs that a catalogue method receives. If there are none,
        the predicate is false.
    :returns: Predicate for ``where()``.
    """
    if not arcs:
        return sa.false()
    return _InArcs(column, sa.literal_column(';'.join(
        f'{low:d} AND {high:d}' for low, high in arcs)))


class _InArcs(functions.FunctionElement[bool]):
    """Predicate of a column and its ranges, written as literal numbers.

    With one expression and two bound parameters for each of 40 arcs,
    SQLAlchemy needs more time to build the statement than the database needs
    to answer it.
    """

    # The type is not Boolean: for a database without that type SQLAlchemy
    # would write ``(...) = 1``, which prevents the use of an index.
    type: Any = sa.types.NULLTYPE
    inherit_cache = True


@compiler.compiles(_InArcs)
def _ranges(element: _InArcs, of: Any, **options: Any) -> str:
    column, arcs = element.clauses
    name = of.process(column, **options)
    ranges = ' OR '.join(f'{name} BETWEEN {arc}' for arc in of.process(
        arcs, **options).split(';'))
    return f'({ranges})'
