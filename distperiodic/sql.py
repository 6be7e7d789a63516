# SPDX-License-Identifier: Apache-2.0
"""Helpers for services that use an SQL database.

If the tables of the service and of distperiodic are in one database, pass
:func:`include_name` to the Alembic environment of the service.

The other helpers are for catalogue methods that read objects. With these
helpers, a catalogue method reads only the objects that its member owns. Add an
indexed column to the table of the objects. Store the result of
:func:`position_of` in this column when you insert a row. A catalogue method
with a parameter ``arcs`` then selects the rows by their positions:

.. code-block:: python

    def nodes(self, context, arcs):
        return session.scalars(
            select(Node).where(in_arcs(Node.position, arcs)))
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from distperiodic.core import ring
from distperiodic.core.catalogue import id_of

__all__ = ['in_arcs', 'include_name', 'position_of']

#: Prefix of the names of all tables of distperiodic.
_PREFIX = 'distperiodic_'


def include_name(name: str | None, type_: str,
                 parent_names: Mapping[str, str | None]) -> bool:
    """Return whether Alembic compares a table with the service's metadata.

    Pass this function to ``context.configure()`` in the ``env.py`` of your
    service. Without it, ``alembic revision --autogenerate`` writes a migration
    that drops the tables of distperiodic.

    :param name: Name of a table or of another object in the database.
    :param type_: ``'table'`` or the kind of the other object.
    :param parent_names: Names of the table and schema to which the object
        belongs.
    :returns: False for the tables of distperiodic.
    """
    return type_ != 'table' or not (name or '').startswith(_PREFIX)


def position_of(obj: Any) -> int:
    """Return the position of an object on the ring.

    :param obj: An object with an ``id``, or an id (str or int).
    :returns: Signed 64-bit integer, for a ``BigInteger`` column.
    :raises InvalidObject: The object has no usable id.
    """
    return ring.position_of(id_of(obj))


def in_arcs(column: Any,
            arcs: Sequence[ring.Arc]) -> sa.ColumnElement[bool]:
    """Return a predicate that is true for positions on one of *arcs*.

    The predicate is an OR of ranges, so all databases can use an index on the
    column.

    :param column: Column of type ``BigInteger`` with the results of
        :func:`position_of`.
    :param arcs: The arcs that a catalogue method receives. Without arcs, the
        predicate is false for every row.
    :returns: Predicate for ``where()``.
    """
    if not arcs:
        return sa.false()
    return _InArcs(column, sa.literal_column(';'.join(
        f'{low:d} AND {high:d}' for low, high in arcs)))


class _InArcs(functions.FunctionElement[bool]):
    """Predicate with the limits of all ranges as literal numbers.

    A typical member has 40 arcs. If each arc were an expression with two bound
    parameters, SQLAlchemy would need more time to build the statement than the
    database needs to execute it.
    """

    # Do not use the type Boolean: for a database without that type, SQLAlchemy
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
