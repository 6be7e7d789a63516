# SPDX-License-Identifier: Apache-2.0
"""For catalogues that live in SQL: read only what this member owns.

A table of objects gets one more column, filled once for each row with
:func:`position_of` and indexed. A catalogue method that takes ``arcs`` then
reads its own part of the table, however large that is::

    def nodes(self, context, arcs):
        return session.scalars(
            select(Node).where(in_arcs(Node.position, arcs)))
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from distperiodic.core import catalogue as catalogue_
from distperiodic.core import ring as ring_

__all__ = ['in_arcs', 'position_of']


def position_of(obj: Any) -> int:
    """The place of an object on the ring: what its column holds.

    :param obj: has an ``id``, or is one (text or a number).
    :returns: a signed 64-bit integer, for a ``BigInteger`` column.
    :raises InvalidObject: it has no id that can be used.
    """
    return ring_.position_of(catalogue_.id_of(obj))


def in_arcs(column: Any,
            arcs: Sequence[ring_.Arc]) -> sa.ColumnElement[bool]:
    """Whether the position in *column* is in one of *arcs*.

    The predicate is a disjunction of ranges, which all databases can read
    from an index on the column.

    :param column: of type ``BigInteger``, filled by :func:`position_of`.
    :param arcs: as a catalogue method is given them; none: nothing is.
    """
    if not arcs:
        return sa.false()
    return _InArcs(column, sa.literal_column(';'.join(
        f'{low:d} AND {high:d}' for low, high in arcs)))


class _InArcs(functions.FunctionElement[bool]):
    """A column and its ranges, which are of numbers and so no data to bind.

    Of an expression and two parameters for each of 40 arcs SQLAlchemy takes
    longer to make a statement than the database takes to answer it.
    """

    # Not Boolean: where a database has no such type SQLAlchemy writes
    # ``(...) = 1``, and no index is used.
    type: Any = sa.types.NULLTYPE
    inherit_cache = True


@compiler.compiles(_InArcs)
def _ranges(element: _InArcs, of: Any, **options: Any) -> str:
    column, arcs = element.clauses
    name = of.process(column, **options)
    ranges = ' OR '.join(f'{name} BETWEEN {arc}' for arc in of.process(
        arcs, **options).split(';'))
    return f'({ranges})'
