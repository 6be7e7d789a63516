# SPDX-License-Identifier: Apache-2.0
"""Connections to the configured store, and the check of its tables."""

import collections
import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Generic
from typing import Protocol
from typing import TypeVar

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar('T', bound=_Closable)


class Connections(Generic[T]):
    """Pool of connections to the store.

    Only one thread at a time uses a given connection.

    :param connect: Returns a new connection.
    :param check: Checks the tables of the store, which takes longer than to
        connect. It is called before the first connection, and again after
        :meth:`close`.
    """

    def __init__(self, connect: Callable[[], T], check: Callable[[], None]):
        self._connect = connect
        self._check = check
        self._checked = False
        # Idle connections by process id. A forked child must neither use nor
        # close the connections of its parent.
        self._idle: dict[int, collections.deque[T]] = {}

    @contextlib.contextmanager
    def lend(self) -> Iterator[T]:
        """Lend a connection to the calling thread."""
        idle = self._idle_here()
        try:
            connection = idle.pop()
        except IndexError:
            if not self._checked:
                self._check()
                self._checked = True
            connection = self._connect()
        try:
            yield connection
        finally:
            idle.append(connection)

    def close(self) -> None:
        """Close the idle connections. The next call opens a new one."""
        self._checked = False
        idle = self._idle_here()
        while idle:
            idle.pop().close()

    def _idle_here(self) -> collections.deque[T]:
        return self._idle.setdefault(os.getpid(), collections.deque())


def check_store(settings: opts.Settings, conf: cfg.ConfigOpts) -> None:
    """Check the tables of the store.

    If the store is embedded, create its file or upgrade its tables.

    :param conf: Configuration from which *settings* were read.
    :raises ConfigError: The tables do not match this release, or the store
        cannot be used for another reason.
    :raises StoreUnavailable: The store does not answer.
    """
    if not settings.connection:
        return
    from distperiodic.adapters.sql import schema
    if settings.embedded:
        schema.create_file(settings.connection, settings.store_file)
    try:
        schema.check(settings.connection)
    except exceptions.SchemaError as exc:
        text = str(exc)
        if text.endswith('distperiodic db sync'):
            # Without the files of this configuration, "db sync" would create
            # the tables in another database.
            text += ''.join(f' --config-file {path}'
                            for path in opts.files(conf))
        if not conf[opts.GROUP].connection:
            text += (
                '; this is the database of [database] connection; set '
                '[distperiodic] connection to use another one, or set it to '
                'none to run without a store')
        raise exceptions.SchemaError(text) from None
