# SPDX-License-Identifier: Apache-2.0
"""Creation of redis-py clients, and classification of their errors."""

import re
from typing import Any

import redis
from redis import backoff
from redis import exceptions as errors
from redis import retry
from redis import sentinel

from distperiodic.adapters.redis.url import RedisDatabase
from distperiodic.exceptions import BusUnavailable
from distperiodic.ports import BrokerHost

#: The oldest release with all commands and options that the carrier uses.
OLDEST = (6, 2)
#: The rights that the bus needs, for a Redis user.
RIGHTS = ('~distperiodic.* +xadd +xgroup|create +xautoclaim +xreadgroup +xack '
          '+xdel +xlen +sadd +srem +smembers +sismember +exists '
          '+pexpire +pttl +del +info +ping +select')
_LOGIN = 'correct the user and the password in transport_url'
# Refusals: the kind of the error, a part of its text, the problem, and the
# remedy.
_REFUSALS: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (errors.NoPermissionError, '', 'refuses a command of user {user!r}',
     f'allow it: ACL SETUSER {{user}} {RIGHTS}'),
    (errors.AuthenticationError, '', 'refuses user {user!r}', _LOGIN),
    (Exception, 'AUTH', 'refuses user {user!r}', _LOGIN),
    (Exception, 'CERTIFICATE_VERIFY_FAILED',
     'has a certificate that this host does not trust',
     'correct ssl_ca_certs in transport_url'),
    (errors.ConnectionError, 'SSL', 'and this host agree on no TLS',
     'correct ssl_certfile and ssl_keyfile, or the port, in transport_url'),
    (Exception, 'DB index', 'has no such database',
     'correct the number at the end of transport_url'))
#: All errors of Redis, and of the connection to it.
FAILURES = (redis.RedisError, OSError)
#: Errors of the connection. All other errors are answers of the server.
DISCONNECTED = (redis.ConnectionError, redis.TimeoutError, OSError)


def client_of(place: RedisDatabase, timeout: float,
              host: BrokerHost | None = None) -> Any:
    """Return a client that connects at its first command.

    The client does not retry commands, because a repeated message could arrive
    twice.

    :param timeout: Maximum seconds for a connection and for a command.
    :param host: One of the servers. None means the server that the URL
        selects.
    """
    options: dict[str, Any] = {
        'db': place.database, 'protocol': 2,
        'username': place.user if place.password else None,
        'password': place.password or None,
        'socket_timeout': timeout, 'socket_connect_timeout': timeout,
        'socket_keepalive': True,
        'retry': retry.Retry(backoff.NoBackoff(), 0)}
    if place.tls:
        options |= {'ssl': True, **place.files}
    if place.sentinel:
        return sentinel.Sentinel(
            [(h.name, h.port) for h in (
                place.hosts if host is None else [host])],
            sentinel_kwargs={
                name: value for name, value in options.items()
                if name not in ('db', 'username', 'password')},
            **options).master_for(place.sentinel)
    one = host or place.hosts[0]
    return redis.Redis(one.name, one.port, **options)


def check_version(client: Any, place: RedisDatabase) -> None:
    """Check that the server is new enough.

    :raises BusUnavailable: The server is too old.
    """
    try:
        text = client.info('server')['redis_version']
    except errors.NoPermissionError:
        # This user may not read the version. A server that is too old rejects
        # a later command.
        return
    except KeyError:
        # A server that is only compatible with Redis may not report a Redis
        # version.
        return
    found = re.match(r'(\d+)\.(\d+)', text)
    if found and tuple(map(int, found.groups())) < OLDEST:
        raise BusUnavailable(
            f'{place} is Redis {text}, but the oldest that can be used is '
            f'{OLDEST[0]}.{OLDEST[1]}; upgrade it')


def refusal_of(error: BaseException, place: RedisDatabase
               ) -> BusUnavailable | None:
    """Return an error for the operator if the server refused this client.

    None means that a retry may succeed.
    """
    if isinstance(error, BusUnavailable):
        return error
    text = place.redacted(error)
    for kind, part, problem, remedy in _REFUSALS:
        if isinstance(error, kind) and part in text:
            user = place.user or 'default'
            return BusUnavailable(f'{place} {problem.format(user=user)} '
                                  f'({text}); {remedy.format(user=user)}')
    return None
