# SPDX-License-Identifier: Apache-2.0
"""Statements of SQLAlchemy, and templates of the page, that all tests of a
process compile once.

Without this, a test, which opens a few connections and executes each of its
statements once or twice, would spend most of its time on compilation.
"""

import collections
import sys

import sqlalchemy as sa


class _Compiled(dict):
    """The compiled statements of all engines of one kind."""

    @staticmethod
    def _key(key):
        return tuple(part for part in key
                     if not isinstance(part, sa.engine.Dialect))

    def get(self, key):
        return super().get(self._key(key))

    def __setitem__(self, key, compiled):
        super().__setitem__(self._key(key), compiled)


def share():
    """Let all engines of one driver and server version share statements, and
    all applications of Flask share templates.
    """
    statements = collections.defaultdict(_Compiled)

    def use(connection):
        dialect = connection.dialect
        connection.execution_options(compiled_cache=statements[
            type(dialect), dialect.driver, dialect.server_version_info])
    sa.event.listen(sa.Engine, 'engine_connect', use)
    if flask := sys.modules.get('flask'):
        flask.Flask.jinja_options = {'bytecode_cache': _templates()}


def _templates():
    import jinja2

    class Templates(jinja2.BytecodeCache):
        codes = {}

        def load_bytecode(self, bucket):
            bucket.code = self.codes.get((bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket):
            self.codes[bucket.key, bucket.checksum] = bucket.code
    return Templates()
