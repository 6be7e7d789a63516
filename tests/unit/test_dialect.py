# SPDX-License-Identifier: Apache-2.0
"""Only the dialects know the names of databases."""

import ast
import pathlib
import re

import pytest
import sqlalchemy as sa

import distperiodic
from distperiodic.adapters.sql.dialects import registry

PACKAGE = pathlib.Path(distperiodic.__file__).parent
NAMES = {name for one in registry.DIALECTS for name in one.names}
#: The first directory has the dialects. The other one has the names of tooz's
#: backends, some of which are databases.
APART = PACKAGE / 'adapters/sql/dialects', PACKAGE / 'adapters/coordination'


def names_in(text):
    """Return the constants in a module that are names of databases."""
    if not re.search(f'''['"]({'|'.join(NAMES)})['"]''', text):
        return []
    return [node.value for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and node.value in NAMES]


def test_no_other_module_asks_for_the_name_of_a_database():
    found = {str(path.relative_to(PACKAGE)): names
             for path in PACKAGE.rglob('*.py')
             if path.parent not in APART
             and (names := names_in(path.read_text()))}

    assert found == {}


def test_the_search_finds_a_name():
    assert names_in("if dialect.name == 'sqlite':\n    pass") == ['sqlite']


def test_no_two_databases_have_one_name_or_scheme():
    names = [name for one in registry.DIALECTS for name in one.names]
    schemes = [scheme for one in registry.DIALECTS for scheme in (
        *one.schemes, *one.misspellings,
        *(driver.name for driver in one.drivers))]

    assert len(names) == len(set(names))
    assert len(schemes) == len(set(schemes))


@pytest.mark.parametrize('scheme', ['mariadb', 'mysql'])
def test_the_connection_of_an_application_to_mariadb_is_known(scheme):
    """SQLAlchemy has two names for the same SQL."""
    dialect = sa.make_url(f'{scheme}+pymysql://h/d').get_dialect()()

    assert dialect.name == scheme
    assert registry.dialect_of(dialect).name == 'mysql'
