# SPDX-License-Identifier: Apache-2.0
"""Loading of a partition's handler class by name, and one-line errors."""

import importlib.metadata
import sys

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import loading
from distperiodic import opts

MODULE = """
from distperiodic import PeriodicTasks
from distperiodic import periodic_task

class Bills(PeriodicTasks):
    made = 0

    def __init__(self, conf):
        super().__init__(conf)
        type(self).made += 1

    @periodic_task(spacing=60, topic='billing', scope='group')
    def bill(self, context):
        pass
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads the handler of the partition 'billing'."""
    (tmp_path / 'bills_module.py').write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        importlib.metadata, 'entry_points',
        lambda group: importlib.metadata.EntryPoints(
            importlib.metadata.EntryPoint(name, value, group)
            for name, value in {
                'bills': 'bills_module:Bills',
                'gone': 'no_such_module:Bills'}.items()))

    def call(handler, topic='billing', given=None):
        text = f'[partition:{topic}]\n'
        path = tmp_path / 'service.conf'
        path.write_text(text + (f'handler = {handler}\n' if handler else ''))
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(path)])
        return loading.load_handler(conf, opts.settings(conf), topic, given)
    yield call
    sys.modules.pop('bills_module', None)


@pytest.mark.parametrize('handler', ['bills', 'bills_module:Bills'])
def test_a_handler_is_an_entry_point_or_a_class(load, handler):
    assert list(load(handler).jobs) == ['bill']


def test_without_the_option_nothing_is_loaded(load):
    assert load('') is None
    assert 'bills_module' not in sys.modules


def test_tasks_that_the_program_has_are_not_built_again(load):
    given = load('bills')

    assert load('bills', given=given) is given
    assert type(given).made == 1


@pytest.mark.parametrize(('handler', 'topic', 'told'), [
    ('bill', 'billing', ["handler = 'bill' is not an entry point of the group "
                         "distperiodic.handlers, which has 'bills', 'gone'"]),
    ('gone', 'billing', ["no module 'no_such_module'"]),
    ('bills_module:Bill', 'billing', ["no class 'Bill'", "mean 'Bills'"]),
    ('bills_module:X', 'billing', ["no class 'X'", 'it has ', 'Bills']),
    ('bills', 'other', ["handler = 'bills' has no job with topic 'other'",
                        'the topics of its jobs are billing']),
])
def test_a_handler_that_cannot_be_used_is_one_line(load, handler, topic,
                                                   told):
    with pytest.raises(exceptions.ConfigError) as raised:
        load(handler, topic)

    line = str(raised.value)
    assert line.startswith(f'[partition:{topic}] handler = ')
    assert [part for part in told if part not in line] == []
    assert '\n' not in line
