# SPDX-License-Identifier: Apache-2.0
"""Validation and completion of the URLs of coordination services.

tooz and its drivers ignore any part of a URL that they do not know: a path, a
misspelt option, a certificate without ``use_ssl``. As a result, two services
that should be separate could share one group, or traffic could be unencrypted.
So this module rejects a URL that has such a part.
"""

import difflib
import importlib.util
import os
import re
import urllib.parse
from collections.abc import Callable

from distperiodic import exceptions
from distperiodic.core import redaction

#: The namespace of distperiodic's groups. It separates them from the groups of
#: other services in the same coordination service.
NAMESPACE = 'distperiodic'

#: URL schemes of the drivers that have group membership, each with the option
#: that sets its session timeout.
_DRIVERS = {
    'zookeeper': 'timeout', 'kazoo': 'timeout', 'file': 'timeout',
    'redis': 'membership_timeout', 'etcd3+http': 'membership_timeout',
    'etcd3+https': 'membership_timeout',
}
#: Ports that the drivers use if the URL names none.
_PORTS = {'zookeeper': 2181, 'kazoo': 2181, 'redis': 6379,
          'etcd3+http': 2379, 'etcd3+https': 2379}
PUSHING = frozenset(['zookeeper', 'kazoo'])
#: Module that a driver imports, by scheme, with the extra that installs it.
_MODULES = {
    'redis': ('redis', 'redis'), 'etcd3+http': ('etcd3gw', 'etcd'),
    'etcd3+https': ('etcd3gw', 'etcd'),
}


def check_backend_url(backend_url: str) -> str:
    """Return the scheme of *backend_url*, if its driver has group membership.

    :raises ConfigError: the URL is malformed, its driver has no group
        membership or is not installed, or its driver would ignore a part of
        the URL.
    """
    shown = redaction.redact(backend_url)
    scheme, colon, rest = backend_url.partition('://')
    if not colon or not (rest or scheme == 'zookeeper'):
        raise exceptions.ConfigError(
            f'backend_url {shown!r} is not a URL; write for example '
            'zookeeper://host1:2181,host2:2181 or file:///var/lib/my-service')
    if scheme in ('mysql', 'postgresql', 'ipc', 'memcached', 'kubernetes'):
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: the tooz driver {scheme!r} has no '
            'reliable group membership, so the owner of an object would be '
            f'unknown; use one of {", ".join(sorted(_DRIVERS))}')
    if scheme == 'rediss':
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: there is no driver {scheme!r}; for TLS '
            'write redis://HOST?ssl=true or zookeeper://HOST?use_ssl=true')
    if scheme not in _DRIVERS:
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: there is no driver {scheme!r}; use one '
            f'of {", ".join(sorted(_DRIVERS))}')
    try:
        url = urllib.parse.urlsplit(backend_url)
        reason = (_place(scheme, url, backend_url)
                  or _options(scheme, url.query))
    except ValueError as exc:
        reason = f'is not a URL ({exc}); correct it'
    if reason:
        raise exceptions.ConfigError(f'backend_url {shown!r} {reason}')
    module, extra = _MODULES.get(scheme, ('kazoo', ''))
    if importlib.util.find_spec(module) is None:
        raise exceptions.ConfigError(
            f'backend_url {shown!r} needs the package {module}, which is not '
            f"installed; install it: pip install 'distperiodic[{extra}]'")
    return scheme


def _place(scheme: str, url: urllib.parse.SplitResult,
           whole: str) -> str | None:
    """Return the error in the part of the URL before its options, or None."""
    if '#' in whole:
        return ('contains a "#", at which its driver ends the URL; give the '
                'service a password without "#"')
    if scheme == 'file':
        if not url.path:
            return ('names no directory; write three slashes: '
                    'file:///var/lib/my-service')
        if url.netloc:
            return ('names a host before its directory; write three slashes: '
                    'file:///var/lib/my-service')
        return None
    if '@' in url.path or '@' in url.query:
        return ('has a "/" or a "?" before its last "@", at which its driver '
                'ends the hosts; give the service a password without both')
    login, at, hosts = url.netloc.rpartition('@')
    if at and scheme in PUSHING and not all(login.partition(':')[::2]):
        return ('has a user without a password, or a password without a user, '
                'which its driver ignores, so every client could write to the '
                'group; write USER:PASSWORD@ or remove it')
    for host in hosts.split(','):
        port = re.fullmatch(r'.*[^:\]]:(\d+)|\[.*\]:(\d+)', host)
        number = int(port[1] or port[2]) if port else 1
        if not 1 <= number <= 65535:
            return f'has a port {number}; ports are from 1 to 65535'
    path = url.path.strip('/')
    if path:
        option = {'zookeeper': f'?namespace={path}',
                  'kazoo': f'?namespace={path}',
                  'redis': f'?db={path}'}
        return ('has a path, which its driver ignores, so all paths would '
                'be the same place; '
                + (f'write {option[scheme]} instead'
                   if scheme in option else 'remove it'))
    return None


# -- checks of options; each function returns the error in a value, or None

def _text(value: str) -> str | None:
    return None


def _file(value: str) -> str | None:
    return None if os.access(value, os.R_OK) and os.path.isfile(
        value) else 'is not a file that this user can read; correct it'


def _is_true(value: str, strict: bool = False) -> bool:
    """Return the truth value of an option.

    :param strict: True if only true and false are valid. Otherwise any other
        value is false.
    :raises ValueError: *value* is not valid.
    """
    # Most URLs have no such option. The module is slow to load, because it
    # compiles hundreds of regular expressions.
    from oslo_utils import strutils
    return bool(strutils.bool_from_string(value, strict=strict))


def _yes_or_no(value: str) -> str | None:
    try:
        _is_true(value, strict=True)
    except ValueError:
        return 'is neither true nor false; write one of them'
    return None


def _seconds(value: str) -> str | None:
    return None if value.isdecimal() and int(value) > 0 else (
        'is not a whole number of seconds above 0; write one')


def _number(value: str) -> str | None:
    return None if value.isdecimal() else (
        'is not a whole number; write one')


def _path(value: str) -> str | None:
    return None if all(
        part not in ('', '.', '..') and part.isascii() and part.isprintable()
        for part in value.strip('/').split('/')) else (
        'is not a valid name; write for example my-service/nodes')


_Check = Callable[[str], str | None]
_ZOOKEEPER: dict[str, _Check] = {
    'ca': _file, 'certfile': _file, 'keyfile': _file,
    'keyfile_password': _text, 'namespace': _path,
    'randomize_hosts': _yes_or_no, 'timeout': _seconds,
    'use_ssl': _yes_or_no, 'verify_certs': _yes_or_no,
}
_REDIS: dict[str, _Check] = {
    'db': _number, 'encoding': _text, 'health_check_interval': _number,
    'lock_timeout': _seconds, 'membership_timeout': _seconds,
    'namespace': _path, 'retry_on_timeout': _yes_or_no, 'sentinel': _text,
    'sentinel_fallback': _text, 'sentinel_password': _text,
    'sentinel_ssl': _yes_or_no, 'sentinel_username': _text,
    'socket_connect_timeout': _number, 'socket_keepalive': _yes_or_no,
    'socket_timeout': _number, 'ssl': _yes_or_no, 'ssl_ca_certs': _file,
    'ssl_certfile': _file, 'ssl_keyfile': _file, 'timeout': _seconds,
}
_ETCD: dict[str, _Check] = {
    'api_version': _text, 'ca_cert': _file, 'cert_cert': _file,
    'cert_key': _file, 'lock_timeout': _seconds,
    'membership_timeout': _seconds, 'timeout': _seconds,
}
_OPTIONS: dict[str, dict[str, _Check]] = {
    'zookeeper': _ZOOKEEPER, 'kazoo': _ZOOKEEPER,
    'file': {'timeout': _seconds}, 'redis': _REDIS,
    'etcd3+http': _ETCD, 'etcd3+https': _ETCD,
}
#: Options that have no effect alone, each with the option that it requires.
_NEEDS = {
    'zookeeper': (('ca', 'use_ssl'), ('certfile', 'use_ssl'),
                  ('keyfile', 'use_ssl'), ('verify_certs', 'use_ssl'),
                  ('certfile', 'keyfile'), ('keyfile', 'certfile')),
    'redis': (('ssl_ca_certs', 'ssl'), ('ssl_certfile', 'ssl'),
              ('ssl_keyfile', 'ssl')),
}


def _options(scheme: str, query: str) -> str | None:
    """Return the error in the options after the '?', or None."""
    known = _OPTIONS[scheme]
    given = urllib.parse.parse_qs(query, keep_blank_values=True)
    for name, values in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f', did you mean {near[0]}?' if near else ''
            return (f'has an option that its driver does not know: {name}'
                    f'{meant}; it has {", ".join(sorted(known))}')
        for value in values:
            problem = ('has no value; write one, or remove it' if not value
                       else known[name](value))
            if problem:
                shown = '' if _secret(name) else f'={value}'
                return f'has an unusable option: {name}{shown} {problem}'
    for name, other in _NEEDS.get('zookeeper' if scheme in PUSHING
                                  else scheme, ()):
        if name not in given:
            continue
        if known[other] is _yes_or_no:
            value = 'true'
            enabled = _is_true(given.get(other, ['no'])[-1])
        else:
            value = 'FILE'
            enabled = other in given
        if not enabled:
            return (f'has the option {name}, which has no effect without '
                    f'{other}; add {other}={value}, or remove {name}')
    return None


def _secret(option: str) -> bool:
    return 'password' in option


def directory(backend_url: str) -> str:
    """Return the directory of a ``file://`` URL."""
    return urllib.parse.urlsplit(backend_url).path


def addresses(backend_url: str) -> list[tuple[str, int]]:
    """Return the servers of *backend_url*. A ``file://`` URL has no servers.

    :raises ConfigError: a port is not a number.
    """
    scheme = check_backend_url(backend_url)
    if scheme == 'file':
        return []
    hosts = backend_url.partition('://')[2]
    for end in '/?':
        hosts = hosts.partition(end)[0]
    found = []
    for host in hosts.rpartition('@')[2].split(','):
        name, colon, port = host.strip().rpartition(':')
        if not colon or name.endswith(']') is not host.startswith('['):
            name, port = host.strip(), ''
        if port and not port.isdigit():
            raise exceptions.ConfigError(
                f'backend_url {redaction.redact(backend_url)!r}: the port '
                f'{port!r} is not a number; write host:port,host:port')
        found.append((name.strip('[]') or 'localhost',
                      int(port) if port else _PORTS[scheme]))
    return found


def has_tls(backend_url: str) -> bool:
    """Return whether traffic to the service is encrypted."""
    scheme, _, rest = backend_url.partition('://')
    query = urllib.parse.parse_qs(rest.partition('?')[2])
    return scheme == 'etcd3+https' or any(
        _is_true(query[name][-1]) for name in ('use_ssl', 'ssl')
        if name in query)


def complete_url(url: str, seconds: float) -> str:
    """Return *url* with the namespace and the session timeout added.

    Options that *url* already has are kept. A URL of etcd gets no namespace,
    because its driver has no such option.

    :param seconds: Session timeout.
    """
    scheme = url.partition('://')[0]
    before, _, query = url.partition('?')
    given = urllib.parse.parse_qs(query)
    added = [query] if query else []
    if scheme == 'file':
        before = os.path.join(before, NAMESPACE)
    elif 'namespace' in _OPTIONS[scheme] and 'namespace' not in given:
        added.append(f'namespace={NAMESPACE}')
    if _DRIVERS[scheme] not in given:
        # Some drivers of tooz accept whole seconds only. Round the timeout,
        # because truncation could shorten it by almost a second. Other members
        # would then take over too early.
        added.append(f'{_DRIVERS[scheme]}={max(1, round(seconds))}')
    return f'{before}?{"&".join(added)}' if added else before
