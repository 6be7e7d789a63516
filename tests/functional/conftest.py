# SPDX-License-Identifier: Apache-2.0
"""Functional tests wait for real sessions to expire, so they have longer."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
SECONDS = 180


def pytest_collection_modifyitems(items):
    for item in items:
        if (HERE in item.path.parents
                and item.get_closest_marker('timeout') is None):
            item.add_marker(pytest.mark.timeout(SECONDS))
