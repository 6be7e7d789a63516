# SPDX-License-Identifier: Apache-2.0
"""Addresses at which a process listens."""

import re
from typing import NamedTuple

from distperiodic import exceptions

_FORM = re.compile(r'(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})')


class Address(NamedTuple):
    """Host and port of a TCP socket."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f'[{self.host}]' if ':' in self.host else self.host
        return f'{host}:{self.port}'


def parse_address(text: str, option: str, lowest: int = 1) -> Address:
    """Return the address in *text*.

    :param text: ``HOST:PORT``. An IPv6 address is in brackets.
    :param option: Name of the option, for the error.
    :param lowest: Lowest port that is allowed. 0 allows port 0, for which the
        system chooses a free port.
    :raises ConfigError: *text* has another form.
    """
    found = _FORM.fullmatch(text)
    port = int(found[3]) if found else -1
    if found is None or not lowest <= port < 65536:
        raise exceptions.ConfigError(
            f'{option} = {text!r} is not HOST:PORT; give for example '
            '127.0.0.1:9464, or 0.0.0.0:9464 for all interfaces')
    return Address(found[1] or found[2], port)
