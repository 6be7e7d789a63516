# SPDX-License-Identifier: Apache-2.0
"""URLs of Redis servers.

The form is ``redis://USER:PASSWORD@HOST:PORT/DATABASE``, or ``rediss://`` for
TLS. With ``?sentinel=NAME``, the hosts are sentinels that know the master of
this name. Percent-encoded characters of the user and the password are decoded.
"""

import dataclasses
import os
import re
import urllib.parse

from distperiodic.exceptions import ConfigError
from distperiodic.ports import BrokerHost

EXAMPLE = 'redis://:password@broker:6379/0'
_PORT, _SENTINEL_PORT = 6379, 26379
_FILES = ('ssl_ca_certs', 'ssl_certfile', 'ssl_keyfile')
_OPTION = re.compile(f'({"|".join(("sentinel", *_FILES))})=')


@dataclasses.dataclass(frozen=True)
class RedisDatabase:
    """One Redis database, on one server or behind sentinels."""

    scheme: str
    hosts: tuple[BrokerHost, ...]
    password: str = dataclasses.field(repr=False)
    database: int
    #: Name of the master that the sentinels know. Empty means no sentinels.
    sentinel: str
    #: Files for TLS, by their names in redis-py.
    files: dict[str, str]

    @property
    def tls(self) -> bool:
        return self.scheme == 'rediss'

    @property
    def user(self) -> str:
        """User to log in as."""
        return self.hosts[0].user

    def __str__(self) -> str:
        hosts = ','.join(str(host) for host in self.hosts)
        named = f'?sentinel={self.sentinel}' if self.sentinel else ''
        return f'{self.scheme}://{hosts}/{self.database}{named}'

    def redacted(self, error: BaseException) -> str:
        """Return the text of an error in one line, without the password."""
        text = ' '.join(str(error).split()) or type(error).__name__
        if self.password:
            text = text.replace(self.password, '***')
        return text


def parse(url: str) -> RedisDatabase:
    """Return the place that *url* names.

    :raises ConfigError: The URL is invalid.
    """
    scheme, _, rest = url.partition('://')
    # A password may contain any character except "%" without percent-encoding.
    # The path of a file in an option may contain "@".
    before, _, query = rest.partition('?')
    if not _OPTION.match(query):
        login, at, last = rest.rpartition('@')
        before, _, query = last.partition('?')
        before = login + at + before
    login, _, address = before.rpartition('@')
    user, _, password = login.partition(':')
    servers, _, database = address.partition('/')
    shown = f'{scheme}://{"***@" if login else ""}{address}'
    try:
        return _place(scheme.lower(), servers, database, query,
                      urllib.parse.unquote(user) or 'default',
                      urllib.parse.unquote(password))
    except ValueError as exc:
        raise ConfigError(f'transport_url {shown} cannot be used: {exc}; it '
                          f'should look like {EXAMPLE}') from None


def _place(scheme: str, servers: str, database: str, query: str, user: str,
           password: str) -> RedisDatabase:
    if scheme not in ('redis', 'rediss'):
        raise ValueError(f'unknown scheme {scheme!r}')
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    sentinel = options.pop('sentinel', '')
    files = {name: options.pop(name) for name in _FILES if name in options}
    if options:
        raise ValueError(
            f'unknown option {", ".join(sorted(options))}; the options are '
            f'sentinel, {", ".join(_FILES)}')
    if files and scheme != 'rediss':
        raise ValueError(f'{", ".join(files)} has no effect without rediss://')
    for name, path in files.items():
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise ValueError(
                f'{name}={path} is not a file that this user can read')
    if database and not (database.isascii() and database.isdecimal()):
        raise ValueError(f'the database {database!r} is not a number')
    port = _SENTINEL_PORT if sentinel else _PORT
    hosts = tuple(_host(server, port, user) for server in servers.split(','))
    if len(hosts) > 1 and not sentinel:
        raise ValueError(f'it names {len(hosts)} servers; several servers '
                         'need ?sentinel=NAME')
    return RedisDatabase(
        scheme, hosts, password, int(database or 0), sentinel, files)


def _host(server: str, port: int, user: str) -> BrokerHost:
    found = urllib.parse.urlsplit(f'//{server}')
    if not found.hostname:
        raise ValueError('it names no server')
    # Reading the port raises ValueError if the port is invalid.
    return BrokerHost(found.hostname, found.port or port, user)
