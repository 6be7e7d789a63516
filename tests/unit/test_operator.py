# SPDX-License-Identifier: Apache-2.0
"""Tools of operators: queries cannot write, and no tool claims objects."""

import pytest

from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator.activity import Activity
from distperiodic.operator.admin import StoreAdmin
from distperiodic.operator.pruning import Pruner
from distperiodic.operator.queries import StoreQueries
from distperiodic.operator.store_probe import StoreProbe
from distperiodic.operator.task_pools import PoolAdmin
from distperiodic.operator.task_pools import PoolQueries
from distperiodic.operator.task_queries import TaskQueries

_READS = Activity, PoolQueries, StoreQueries, StoreProbe, TaskQueries
_WRITES = {'reset', 'pause', 'resume', 'trigger', 'requeue', 'prune', 'write'}


@pytest.fixture(params=[*_READS, PoolAdmin, StoreAdmin, Pruner])
def one(request, tmp_path):
    made = request.param(f'sqlite:///{tmp_path}/claims', namespace='tests')
    yield made
    made.close()


def test_an_operator_is_no_claim_store(one):
    assert not {'claim', 'start', 'finish', 'sync'} & set(dir(one))
    assert not isinstance(one, SqlClaimStore)


@pytest.mark.parametrize('one', _READS, indirect=True)
def test_a_reader_has_no_way_to_write(one):
    for part in one, one.group:
        assert not _WRITES & set(dir(part))
        assert not any(isinstance(held, Database)
                       for held in vars(part).values())
