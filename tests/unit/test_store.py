# SPDX-License-Identifier: Apache-2.0
"""The pool of connections to the store."""

from unittest import mock

import pytest

from distperiodic import exceptions
from distperiodic.store import Connections


def test_the_store_is_checked_once_for_all_connections_until_they_are_closed():
    check = mock.Mock()
    connections = Connections(mock.Mock, check)

    with connections.lend() as one, connections.lend() as other:
        assert one is not other
    assert check.call_count == 1

    connections.close()
    with connections.lend():
        assert check.call_count == 2


def test_a_check_that_failed_is_repeated_before_the_first_connection():
    connect = mock.Mock()
    connections = Connections(connect, mock.Mock(
        side_effect=[exceptions.StoreUnavailable('away'), None]))

    with (pytest.raises(exceptions.StoreUnavailable, match='away'),
          connections.lend()):
        pass
    assert not connect.called

    with connections.lend():
        assert connect.called
