# SPDX-License-Identifier: Apache-2.0
"""Free ports of loopback that stay free while their server is down."""

import pathlib
import random
import socket

HOST = '127.0.0.1'
# An ensemble draws nine before the first of its servers listens.
_GIVEN: set[int] = set()


def free_port() -> int:
    """Return a port nobody listens on, another one each time.

    It lies below the range from which the kernel takes the ports of outgoing
    connections. In it, a client that keeps asking for a dead server can be
    given the server's own port, be connected to itself, and keep the server
    from ever coming back.
    """
    lowest = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
                 .read_text().split()[0])
    below = range(max(1024, lowest - 16384), lowest)
    # Test runs side by side must not draw the same ports, so no seed.
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
