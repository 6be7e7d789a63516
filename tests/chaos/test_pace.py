# SPDX-License-Identifier: Apache-2.0
"""All times of a cluster's life depend on the pace in the same way."""

import json
import os
import subprocess

import pytest

from tests import programs
from tests.chaos import books
from tests.chaos import cluster
from tests.chaos import gauges
from tests.chaos import jobs
from tests.chaos import life
from tests.chaos import promises
from tests.chaos import promotions
from tests.chaos import standby
from tests.chaos import tasks
from tests.chaos import times
from tests.chaos.pace import PACE

TIMES = {
    cluster: ('SESSION', 'LEASE', 'LATE_AFTER', 'SWEEP'),
    promises: ('PROMISE', 'PROMPT', 'SLACK', 'START'),
    times: ('TAKE_OVER', 'RECOVERY', 'LATE'), books: ('AFTER', 'PATIENCE'),
    life: ('CALM', 'AFTERWARDS'), gauges: ('WINDOW',), tasks: ('PAUSE',),
    jobs: ('LONGEST',), standby: ('TAKES_OVER',), promotions: ('TAKES_TURN',)}


def found():
    """Return the times of a life and the periods of the jobs, by name."""
    return {f'{module.__name__}.{name}': getattr(module, name)
            for module, names in TIMES.items() for name in names} | {
        name: job.schedule.spacing_us for name, job in jobs.declared().items()
        if name != 'cron'}


def test_a_process_has_the_pace_of_the_test_that_starts_it():
    assert _elsewhere() == found()


def test_each_time_of_a_life_is_a_multiple_of_the_pace():
    assert _elsewhere(DISTPERIODIC_TEST_PACE=str(2 * PACE)) == {
        name: pytest.approx(2 * value) for name, value in found().items()}


def _elsewhere(**environment):
    return json.loads(subprocess.run(
        [*programs.PYTHON, '-c', 'import json; from tests.chaos import '
         'test_pace; print(json.dumps(test_pace.found()))'],
        cwd=programs.ROOT, env=os.environ | environment, text=True,
        check=True, stdout=subprocess.PIPE).stdout)
