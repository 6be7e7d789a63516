# SPDX-License-Identifier: Apache-2.0
"""The URL of a coordination service: checked, shown, completed."""

import urllib.parse

from distperiodic import exceptions

#: Drivers that know groups, and the option that holds their timeout.
_DRIVERS = {
    'zookeeper': 'timeout', 'kazoo': 'timeout', 'file': 'timeout',
    'redis': 'membership_timeout', 'rediss': 'membership_timeout',
    'etcd3+http': 'membership_timeout', 'etcd3+https': 'membership_timeout',
}
PUSHING = frozenset(['zookeeper', 'kazoo'])


def check(backend_url: str) -> str:
    """The scheme of *backend_url*, if its driver has group membership.

    :raises ConfigError: it is misspelt or its driver has none.
    """
    shown = mask(backend_url)
    scheme, colon, rest = backend_url.partition('://')
    if not colon or not (rest or scheme == 'zookeeper'):
        raise exceptions.ConfigError(
            f'backend_url {shown!r} is not a URL; write for example '
            'zookeeper://host1:2181,host2:2181 or file:///var/lib/my-service')
    if scheme in ('mysql', 'postgresql', 'ipc', 'memcached', 'kubernetes'):
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: the tooz driver {scheme!r} has no '
            'reliable group membership, so nobody could know who owns what; '
            f'use one of {", ".join(sorted(_DRIVERS))}')
    if scheme not in _DRIVERS:
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: there is no driver {scheme!r}; use one '
            f'of {", ".join(sorted(_DRIVERS))}')
    if scheme == 'file' and not urllib.parse.urlsplit(backend_url).path:
        raise exceptions.ConfigError(
            f'backend_url {shown!r} names no directory; write three slashes: '
            'file:///var/lib/my-service')
    return scheme


def mask(url: str) -> str:
    """*url* without its password."""
    scheme, colon, rest = url.partition('://')
    user, at, hosts = rest.rpartition('@')
    if at and ':' in user:
        user = user.partition(':')[0] + ':***'
    return scheme + colon + user + at + hosts


def with_timeout(url: str, seconds: float) -> str:
    """*url* with its driver's session timeout, unless it names one."""
    option = _DRIVERS[url.partition('://')[0]]
    query = urllib.parse.urlsplit(url).query
    if option in urllib.parse.parse_qs(query):
        return url
    # tooz reads it by int(); less than asked would be unsafe to trust.
    return (f'{url}{"&" if query else "?"}{option}='
            f'{max(1, round(seconds))}')
