# SPDX-License-Identifier: Apache-2.0
"""Signals to a service that runs as a program of its own."""

import os
import signal
import threading

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic.service import lifecycle
from tests.configured import configuration

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Service(lifecycle.Lifecycle):
    """A service that does no work, and sends itself the signals *asked*."""

    _kind = 'service'

    def __init__(self, *asked, error=None):
        super().__init__(configuration(), periodic.PeriodicTasks())
        self.asked, self.error = asked, error
        self.done = []

    def _prepare(self):
        pass

    def _work(self):
        pass

    def _entry(self):
        return 'service'

    def _watched(self):
        return ()

    def hurry(self):
        pass

    def set_drained(self, drained):
        pass

    def open_runs(self):
        return 0

    def _leave(self, timeout=0.0):
        pass

    def start(self):
        self.done.append('start')
        if self.error is not None:
            self._problem = self.error
            self._ended.set()
        for number in self.asked:
            os.kill(os.getpid(), number)

    def reset(self):
        self.done.append('reset')

    def stop(self, graceful=True):
        self.done.append('stop')
        self.second = signal.getsignal(signal.SIGINT)
        self._stopping.set()
        self._ended.set()


@pytest.fixture(autouse=True)
def handlers_as_they_were():
    before = {number: signal.signal(number, signal.SIG_DFL)
              for number in HEARD}
    before[signal.SIGINT] = signal.default_int_handler
    # Under nohup the tests start with SIGHUP ignored.
    before[signal.SIGHUP] = signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)
    yield
    after = {number: signal.getsignal(number) for number in HEARD}
    assert after == before


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(number):
    service = Service(number)

    service.run()

    assert service.done == ['start', 'stop']
    # A second Ctrl-C ends the process at once.
    assert service.second is signal.SIG_DFL


def test_sighup_reads_the_options_again_and_ends_nothing():
    service = Service(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)

    service.run()

    assert service.done == ['start', 'reset', 'reset', 'stop']


def test_an_error_that_ends_a_service_is_raised():
    with pytest.raises(OSError, match='no disk'):
        Service(error=OSError('no disk')).run()


def test_an_option_that_cannot_be_used_is_one_line():
    with pytest.raises(SystemExit) as ended:
        Service(error=exceptions.ConfigError('no driver')).run()

    assert ended.value.code == 'service: no driver'


def test_sigint_that_is_ignored_stays_so():
    """A shell starts background programs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service = Service(signal.SIGINT, signal.SIGTERM)
    try:
        service.run()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    assert service.done == ['start', 'stop']
    # The signal that ended the service was SIGTERM.
    assert service.second is signal.SIG_IGN


def test_a_thread_that_receives_no_signals_is_refused_in_one_line():
    service, told = Service(), []

    def run():
        with pytest.raises(RuntimeError) as raised:
            service.run()
        told.append(str(raised.value))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert 'is not the main thread; in another thread, call start()' in told[0]
    assert service.done == []


@pytest.mark.parametrize(('text', 'seconds'), [
    ('graceful_shutdown_timeout = 20', 18), ('', 58)])
def test_a_stop_has_the_time_that_the_file_of_the_host_gives(
        tmp_path, text, seconds):
    """Nothing but a launcher of oslo.service registers the option."""
    file = tmp_path / 'host.conf'
    file.write_text(f'[DEFAULT]\n{text}\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], project='host')

    assert lifecycle.grace(conf) == seconds
