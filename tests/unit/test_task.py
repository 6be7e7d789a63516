# SPDX-License-Identifier: Apache-2.0
"""Ids of tasks."""

import re

from distperiodic.core.task import new_id
from distperiodic.core.task import ring_key

NOW = 1_800_000_000_000_000


def test_ids_are_unique_and_grow_with_time():
    ids = [new_id(NOW + 1000 * n, 'q' if n % 2 else None) for n in range(500)]

    assert ids == sorted(ids)
    assert len({new_id(NOW, 'q') for _ in range(500)}) == 500
    assert all(re.fullmatch('[0-9a-f]{32}', one) for one in ids)


def test_ids_of_tasks_that_are_submitted_together_keep_their_order():
    for queue in None, 'q':
        ids = [new_id(NOW, queue) for _ in range(500)]

        assert ids == sorted(ids)


def test_the_tasks_of_a_queue_share_a_place_on_the_ring():
    keys = {name: {ring_key(new_id(NOW + n, name)) for n in range(20)}
            for name in ('q', 'p', 'очередь', '', None)}

    assert {len(keys[name]) for name in ('q', 'p', 'очередь', '')} == {1}
    assert len(keys[None]) == 20
    assert len(set.union(*keys.values())) == 24
