# SPDX-License-Identifier: Apache-2.0
"""Notices of tasks over messages, without a broker."""

import threading

import pytest
from oslo_config import cfg

from distperiodic import exceptions
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.notices import TaskNotices
from tests import waiting


class Driver:
    """A driver whose carrier fails to open at the first attempt."""

    def __init__(self):
        self.attempts = 0
        self.sent = threading.Event()

    def carrier(self, *_, **__):
        return self

    def open(self, _):
        self.attempts += 1
        if self.attempts == 1:
            raise exceptions.ConfigError('no such host')

    def cast(self, *_):
        self.sent.set()

    def close(self, _):
        pass


@pytest.fixture
def conf():
    found = cfg.ConfigOpts()
    found([])
    drivers.url_of(found)
    found.set_override('transport_url', 'fake://')
    return found


def test_a_notice_is_sent_after_an_attempt_to_connect_has_failed(
        conf, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(drivers, 'driver_of', lambda url: driver)
    notices = TaskNotices(conf, group='g')
    notices.notify(['lost'])
    waiting.wait_until(lambda: driver.attempts == 1)

    def sent():
        notices.notify(['t'])
        return driver.sent.wait(0.05)
    waiting.wait_until(sent)
    notices.close(5)

    assert driver.attempts == 2
