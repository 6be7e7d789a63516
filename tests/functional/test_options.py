# SPDX-License-Identifier: Apache-2.0
"""The services work with the minimum and the maximum of each numeric option.

Each test changes one option.
"""

import logging
import threading

import pytest
from oslo_config import cfg

import distperiodic
from distperiodic import opts
from distperiodic import service
from distperiodic.adapters.sql import schema

EXTREMES = [
    pytest.param(opt.dest, value, id=f'{opt.dest}={value:g}')
    for opt in opts.OPTS if isinstance(opt, (cfg.IntOpt, cfg.FloatOpt))
    for value in (opt.type.min, opt.type.max)]


class Tasks(distperiodic.PeriodicTasks):
    """One job with three objects."""

    def __init__(self, conf):
        super().__init__(conf)
        self.ran = threading.Event()

    def hosts(self, context):
        return ['a', 'b', 'c']

    @distperiodic.periodic_task(spacing=1, objects='hosts')
    def ping(self, context, host):
        self.ran.set()


@pytest.mark.parametrize('store', [True, False], ids=['store', 'no store'])
@pytest.mark.parametrize(('option', 'value'), EXTREMES)
def test_the_services_work_with_it(tmp_path, caplog, option, value, store):
    caplog.set_level(logging.WARNING, 'distperiodic')
    connection = 'none'
    if store:
        connection = f'sqlite:///{tmp_path / "store.sqlite"}'
        schema.sync(connection)
    file = tmp_path / 'service.conf'
    file.write_text(
        f'[DEFAULT]\ntransport_url = fake:///\n[distperiodic]\n'
        f'backend_url = file://{tmp_path / "groups"}\n'
        f'connection = {connection}\nstate_path = {tmp_path}\n'
        f'dispatcher = messaging\n{option} = {value}\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], default_config_files=[])
    tasks = Tasks(conf)
    running = []
    try:
        for kind in service.SchedulerService, service.WorkerService:
            one = kind(conf, tasks)
            one.start()
            running.append(one)
        assert tasks.ran.wait(20), 'nothing ran'
    finally:
        for one in running:
            one.stop()
            one.wait()

    assert [r.getMessage() for r in caplog.records
            if r.levelno >= logging.ERROR] == []
