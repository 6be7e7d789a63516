# SPDX-License-Identifier: Apache-2.0
"""The outbox of replies to commands of operators."""

import time

import pytest

from distperiodic.adapters.messaging.reply_outbox import ReplyOutbox
from distperiodic.core.control_message import ControlReply

REPLY = ControlReply('1', 'main', 'one', 'one~1', True, 'drained')


def test_close_sends_the_replies_that_wait():
    sent = []
    outbox = ReplyOutbox(lambda reply, word: sent.append(word))
    for word in 'abc':
        outbox.put(REPLY, word)

    outbox.close(10)

    assert sent == ['a', 'b', 'c']


@pytest.mark.parametrize('number', [1, 200], ids=['one', 'too many'])
def test_close_takes_no_longer_than_its_timeout(number):
    outbox = ReplyOutbox(lambda reply, word: time.sleep(0.8))
    for _ in range(number):
        outbox.put(REPLY, 'a')

    began = time.monotonic()
    outbox.close(1)

    assert time.monotonic() - began < 1.4
