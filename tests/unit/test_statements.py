# SPDX-License-Identifier: Apache-2.0
"""The parameters of the SQL statements have one meaning each."""

import collections

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import visitors

from distperiodic.adapters.sql import step_statements
from distperiodic.adapters.sql.dialects.registry import dialect_of
from distperiodic.adapters.sql.statements import Statements

DIALECTS = {module.__name__.rpartition('.')[2]: module.dialect
            for module in (mysql, postgresql, sqlite)}


def statements(dialect):
    found = Statements(dialect)
    yield from found_in(vars(found))
    if dialect.writes_in_with:
        yield 'grant', step_statements.grant(dialect)


def found_in(attributes):
    """Yield the statements among *attributes*, and in tuples of them."""
    for name, value in attributes.items():
        if isinstance(value, sa.ClauseElement):
            yield name, value
        elif isinstance(value, tuple):
            yield from found_in({f'{name}.{at}': one
                                 for at, one in enumerate(value)})
        elif isinstance(value, dict):
            yield from found_in({f'{name}.{key}': one
                                 for key, one in value.items()})


@pytest.mark.parametrize('name', DIALECTS)
def test_all_connections_of_a_process_share_the_statements(name):
    """Each connection has another dialect of SQLAlchemy."""
    one, other = (dialect_of(DIALECTS[name]()).once(Statements)
                  for _ in range(2))

    assert one is other


@pytest.mark.parametrize('name', DIALECTS)
def test_a_parameter_of_a_statement_has_one_type(name):
    """Parts of a statement that use one name for two values would share one
    value.
    """
    for of, statement in statements(dialect_of(DIALECTS[name]())):
        kinds = collections.defaultdict(set)
        for one in visitors.iterate(statement):
            if isinstance(one, sa.BindParameter) and not isinstance(
                    one.type, sa.types.NullType):
                kinds[one.key].add(one.type.python_type)
        assert [key for key in kinds if len(kinds[key]) > 1] == [], of
