# SPDX-License-Identifier: Apache-2.0
"""Property tests judge results, never how long a loaded machine took."""

import logging

import hypothesis
import pytest

hypothesis.settings.register_profile('unhurried', deadline=None)
hypothesis.settings.load_profile('unhurried')


@pytest.fixture
def logging_as_it_was():
    """For tests of what sets logging up for a whole program."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
