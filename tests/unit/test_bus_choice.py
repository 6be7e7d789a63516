# SPDX-License-Identifier: Apache-2.0
"""A bus within one process is rejected if other processes need a bus."""

import pytest
from oslo_config import cfg

import distperiodic
from distperiodic import opts
from distperiodic import service
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.exceptions import ConfigError
from distperiodic.operator.auditing import Actor
from distperiodic.operator.ring_members import RingMembers


def conf_of(path, *partition, url='fake://'):
    path.write_text('\n'.join([
        '[DEFAULT]', f'transport_url = {url}', '[distperiodic]',
        'dispatcher = messaging', 'backend_url = zookeeper://127.0.0.1:1',
        'connection = sqlite:////nowhere/at/all', *partition, '']))
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)], default_config_files=[])
    return conf, opts.settings(conf)


class Tasks(distperiodic.PeriodicTasks):

    @distperiodic.periodic_task(spacing=1, topic='billing')
    def bill(self, context):
        pass


@pytest.mark.parametrize('own', [True, False])
def test_a_standby_worker_needs_a_broker_that_others_reach(tmp_path, own):
    conf, _ = conf_of(
        tmp_path / 'conf', '[partition:billing]', 'mode = standby',
        *(['transport_url = fake://'] if own else []),
        url='rabbit://u:p@127.0.0.1:1/' if own else 'fake://')
    worker = service.WorkerService(conf, Tasks(conf), 'billing')

    with pytest.raises(ConfigError, match=(
            r'^\[partition:billing\] mode = standby .*fake://.*'
            r'set transport_url to a broker.*$')):
        worker.start()


def test_a_command_over_a_bus_within_one_process_is_refused(tmp_path):
    conf, settings = conf_of(tmp_path / 'conf')

    with pytest.raises(ConfigError, match=(
            'fake:// is a bus within one process.*connection')):
        RingMembers(conf, settings, actor=Actor('op', 'host', ''),
                    clock=SystemClock(), wait=0.1)
