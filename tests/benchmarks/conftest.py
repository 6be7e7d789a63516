# SPDX-License-Identifier: Apache-2.0
"""Separate databases that can keep a table of a million rows in memory."""

import pytest

from tests import services

KINDS = ['sqlite', 'postgresql', 'mariadb']


@pytest.fixture(params=KINDS)
def database(request, tmp_path):
    """Yield the kind of a database and its URL."""
    if request.param == 'sqlite':
        yield 'sqlite', f'sqlite:///{tmp_path}/benchmark.sqlite'
    elif request.param == 'postgresql':
        with services.postgresql(its_own=True) as server:
            yield 'postgresql', server.url
    else:
        with services.mariadb(its_own=True, memory='512M') as server:
            yield 'mariadb', server.url
