# SPDX-License-Identifier: Apache-2.0
"""Ports on the loopback interface that stay free while the server that uses
them is down.
"""

import pathlib
import random
import socket

HOST = '127.0.0.1'
# Ports that free_port() has returned. It returns none of them again, although
# an ensemble takes nine ports before its first server listens.
_GIVEN: set[int] = set()


def free_port() -> int:
    """Return an unused port. Each call returns a different port.

    The port is below the range from which the kernel takes the ports of
    outgoing connections. Inside this range, a client that retries a connection
    to a stopped server may get the server's port as its own. It would then be
    connected to itself, and the server could not start again.
    """
    lowest = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
                 .read_text().split()[0])
    below = range(max(1024, lowest - 16384), lowest)
    # Without a seed, parallel test runs draw different ports.
    for port in random.SystemRandom().sample(below, len(below)):
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            _GIVEN.add(port)
            return port
    raise RuntimeError(f'no port of {HOST} in {below} is free')
