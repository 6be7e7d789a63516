# SPDX-License-Identifier: Apache-2.0
"""The metrics in the registry of a program that embeds a service."""

import subprocess
import sys

from prometheus_client import parser

from tests import programs
from tests.unit.test_metrics_endpoint import sample

PROGRAM = '''
import sys
import time

import prometheus_client
from oslo_config import cfg

from distperiodic import PeriodicTasks
from distperiodic import exceptions
from distperiodic import metrics
from distperiodic import periodic_task
from distperiodic.service import SchedulerService


class Tasks(PeriodicTasks):
    @periodic_task(spacing=1, scope='group')
    def ping(self, context):
        done.append(1)


done = []
prometheus_client.Counter('host_requests', 'of the program').inc()
metrics.install()
try:
    metrics.install()
except exceptions.ConfigError as exc:
    print(exc, file=sys.stderr)
conf = cfg.ConfigOpts()
conf(['--config-file', sys.argv[1]])
service = SchedulerService(conf, Tasks(conf))
service.start()


def text():
    return prometheus_client.generate_latest().decode()


while 'distperiodic_runs_total{job="ping",outcome="done"} 1' not in text():
    time.sleep(0.05)
print(text())
service.stop()
service.wait()
'''


def test_a_program_serves_the_metrics_of_its_service_beside_its_own(tmp_path):
    config = programs.write_config(tmp_path / 'service.conf', distperiodic={
        'group': 'host', 'state_path': tmp_path / 'state'})

    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', PROGRAM, config], text=True,
        capture_output=True, cwd=programs.ROOT, timeout=120)

    assert done.returncode == 0, done.stderr
    found = {(one.name, tuple(sorted(one.labels.items()))): one.value
             for family in parser.text_string_to_metric_families(done.stdout)
             for one in family.samples}
    assert sample(found, 'host_requests_total') == 1
    assert sample(found, 'distperiodic_services', role='scheduler') == 1
    assert sample(found, 'distperiodic_run_duration_seconds_count',
                  job='ping') >= 1
    # A counter is there before its first event.
    assert ('distperiodic_ticks_lost_total', (('job', 'ping'),)) in found
    # The names of a second call are in the registry already.
    assert 'call distperiodic.metrics.install() once' in done.stderr
    assert 'Traceback' not in done.stderr
