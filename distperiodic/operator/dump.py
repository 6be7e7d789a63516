# SPDX-License-Identifier: Apache-2.0
"""The state of a group as one value, for a report of a bug.

Each part is read separately, so a part that cannot be read does not prevent
the others: it has the key ``unavailable`` with the reason. Passwords and keys
are masked. Ids of objects and tasks, errors, and texts of operators are left
out, unless the caller requests them.
"""

import contextlib
import importlib.metadata
import platform
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.core import redaction
from distperiodic.core import wording
from distperiodic.core.member import ring_digest
from distperiodic.operator import health
from distperiodic.operator.health import Finding
from distperiodic.operator.live_group import Group
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.group_reader import GroupReader

#: Version of the form of a dump.
FORMAT = 1
# Packages whose versions a report of a bug needs, in addition to those of the
# drivers of databases.
_PACKAGES = (
    'SQLAlchemy', 'alembic', 'cliff', 'cronsim', 'etcd3gw', 'eventlet',
    'kazoo', 'kombu', 'amqp', 'oslo.config', 'oslo.db', 'oslo.messaging',
    'oslo.service', 'redis', 'tooz')
# Maximum number of rows of the history, of actions, queues and members.
_ROWS = 1000
# Keys of a member's report that contain no ids, errors or texts.
_OF_REPORT = (
    'kind', 'version', 'host', 'healthy', 'pools', 'in_flight', 'drained',
    'commands', 'more_commands', 'view', 'clock_ahead_s', 'topics',
    'paused_jobs', 'more_runs', 'more_tasks')
# A password may contain a raw "@". Then it ends before the last one of its
# host, or before the last one of a URL that has no other host.
_PASSWORDS = [re.compile(rf'(?:://|,)[^:/@,]*:({password})@')
              for password in ('[^@]*', '[^,]*', '.*')]
_OPTION = re.compile(r'[?&]\w*pass\w*=([^&]*)')
_URL = re.compile(r'[\w+.-]+://')
# Shorter secrets are only masked in URLs: masked in all texts, they would make
# a dump unreadable.
_SHORTEST = 4
_MASK = '***'

# Errors after which no other part of the same server is read.
_AWAY = exceptions.StoreUnavailable, exceptions.CoordinationUnavailable

#: A part of a dump: its name, and the function that returns it.
Part = tuple[str, Callable[[], object]]


def read(parts: Iterable[Iterable[Part]], seconds: float,
         secrets: Iterable[str]) -> dict[str, Any]:
    """Return the values of all parts, by name.

    :param parts: The parts, in groups. The groups are read at the same time,
        and the parts of a group one after the other, each in the thread of its
        group.
    :param seconds: Maximum number of seconds. The parts that are not read by
        then are unavailable.
    :param secrets: Texts to mask in all values.
    """
    groups = [list(one) for one in parts]
    found: dict[str, Any] = {}
    threads = [threading.Thread(
        target=_read_group, args=(one, found), daemon=True) for one in groups]
    for thread in threads:
        thread.start()
    deadline = threading.Event()
    timer = threading.Timer(seconds, deadline.set)
    timer.daemon = True
    timer.start()
    while any(one.is_alive() for one in threads) and not deadline.is_set():
        for thread in threads:
            thread.join(0.05)
    timer.cancel()
    known = dict(found)
    masked = _masked({
        name: known.get(name, {
            'unavailable': f'not read within {seconds:g} s'})
        for group in groups for name, _ in group}, _ordered(secrets))
    assert isinstance(masked, dict)
    return masked


def _read_group(parts: Iterable[Part], found: dict[str, Any]) -> None:
    away: object = None
    for name, call in parts:
        if away is not None:
            # Each attempt could take long to fail.
            found[name] = away
            continue
        try:
            found[name] = call()
        except exceptions.DistperiodicError as exc:
            found[name] = {'unavailable': wording.one_line(exc)}
            if isinstance(exc, _AWAY):
                away = found[name]
        except Exception as exc:
            # A dump is most useful if something is broken. The text of an
            # unexpected error may contain ids.
            found[name] = {'unavailable': type(exc).__name__}


def secrets_of(conf: Any) -> set[str]:
    """Return the texts that must not be in a dump: passwords and keys."""
    found = set()
    for _, _, option, value in _options(conf):
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, str):
                found |= _secrets_in(text, bool(option.secret))
    return found


def _secrets_in(text: str, secret: bool) -> set[str]:
    if '@' not in text and '://' not in text:
        return {text} if secret else set()
    hidden = {one for pattern in (*_PASSWORDS, _OPTION)
              for one in pattern.findall(text)}
    # A URL that cannot be parsed may contain its password anywhere before @.
    if secret and not _URL.match(text):
        hidden |= {text, text.rpartition('@')[0].rpartition(':')[2]}
    return hidden | {urllib.parse.unquote(one) for one in hidden}


def _ordered(secrets: Iterable[str]) -> list[str]:
    # A secret may contain another one.
    return sorted((one for one in set(secrets) if len(one) >= _SHORTEST),
                  key=len, reverse=True)


def _masked(value: Any, secrets: list[str]) -> Any:
    """Return *value* without the secrets in its texts."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, _MASK)
        return str(value)
    if isinstance(value, Mapping):
        return {_masked(str(key), secrets): _masked(one, secrets)
                for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(one, secrets) for one in value]
    return value


# -- the parts that need no server


def versions() -> dict[str, object]:
    """Return the versions of this library, of Python and of packages."""
    from distperiodic.adapters.sql.dialects.registry import DIALECTS
    installed = importlib.metadata.packages_distributions()
    drivers = [name for one in DIALECTS for driver in one.drivers
               for name in installed.get(driver.module, ())]
    found = {}
    for name in (*_PACKAGES, *drivers):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        'distperiodic': importlib.metadata.version('distperiodic'),
        'python': sys.version.split()[0], 'system': platform.platform(),
        'packages': found}


def options(conf: Any) -> dict[str, dict[str, object]]:
    """Return the effective options by section; secrets are masked."""
    found: dict[str, dict[str, object]] = {}
    for section, name, option, value in _options(conf):
        found.setdefault(section, {})[name] = _shown(option, value)
    return found


def _options(conf: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield section, name, option and value of all options of this library.

    The values are those in force: some depend on other options.
    """
    from distperiodic.adapters.messaging import drivers
    opts.register_opts(conf)
    settings = None
    # If an option cannot be used, "doctor" says so.
    with contextlib.suppress(exceptions.DistperiodicError):
        settings = opts.settings(conf)
    sections = {opts.GROUP: opts.OPTS} | {
        name: opts.PARTITION_OPTS for name in conf.list_all_sections()
        if opts.is_of_partition(name)}
    for section, options_ in sections.items():
        conf.register_opts(options_, group=section)
        for option in options_:
            value = getattr(settings, option.dest, None) if (
                section == opts.GROUP) else None
            if value is None:
                with contextlib.suppress(cfg.Error, ValueError):
                    value = conf[section][option.dest]
            yield section, option.dest, option, value
    secret = cfg.StrOpt('transport_url', secret=True)
    with contextlib.suppress(exceptions.DistperiodicError):
        yield 'DEFAULT', secret.dest, secret, drivers.url_of(conf)


def _shown(option: Any, value: Any) -> object:
    if isinstance(value, (list, tuple)):
        return [_shown(option, one) for one in value]
    if isinstance(value, str):
        if option.secret and not _URL.match(value):
            return _MASK if value else value
        return redaction.redact(value)
    return value if isinstance(value, (bool, int, float, type(None))
                               ) else redaction.redact(str(value))


# -- the parts of servers


def group_parts(sources: Sources) -> list[Part]:
    """Return the parts that the coordination service provides."""
    return [('group', _if_set(
        sources, 'backend_url', lambda: _group(sources.group)))]


def store_parts(sources: Sources, hours: float,
                with_ids: bool) -> list[Part]:
    """Return the parts that the store provides.

    :param hours: Age of the oldest ticks and actions.
    :param with_ids: True includes ids, errors and the texts of operators.
    """
    def store() -> 'GroupReader':
        return sources.store

    def since() -> int:
        return max(0, store().now() - round(hours * 3600e6))
    parts: list[Part] = [
        ('database', lambda: _database(store())),
        ('jobs', lambda: _jobs(store(), with_ids)),
        ('members', lambda: _members(store(), with_ids)),
        ('partitions', lambda: _partitions(store())),
        ('queues', lambda: _queues(store(), with_ids)),
        ('waiting', lambda: _waiting(store(), with_ids)),
        ('history', lambda: _history(store(), since(), with_ids)),
        ('events', lambda: _events(store(), since(), with_ids)),
        ('health', lambda: _health(sources, with_ids))]
    return [(name, _if_set(sources, 'connection', call))
            for name, call in parts]


def _if_set(sources: Sources, option: str,
            call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that calls *call* if an option is set."""
    return lambda: call() if getattr(sources.settings, option) else {
        'not_configured': option}


def _group(group: Group) -> dict[str, object]:
    def shown(members: Iterable[Any]) -> list[dict[str, object]]:
        return [{'name': one.identity, 'points': one.points,
                 'slots': one.slots, 'joined_us': group.joined.get(one.entry),
                 'clock_ahead_s': group.skews.get(one.entry)}
                for one in members]
    return {
        'name': group.name, 'ring_digest': ring_digest(group.members),
        'members': shown(group.members),
        'workers': {topic: shown(some)
                    for topic, some in group.workers.items()},
        'unknown_entries': len(group.unknown_entries),
        'job_sets': len(group.job_sets)}


def _database(store: 'GroupReader') -> dict[str, object]:
    from distperiodic.adapters.sql import schema
    from distperiodic.operator import store_probe
    return {
        'kind': store.dialect.name, 'server': store_probe.version(store),
        # Otherwise the store would be unavailable.
        'schema': schema.VERSION, 'now_us': store.now(),
        'isolation': store_probe.isolation(store),
        'rows': store_probe.sizes(store)}


def _jobs(store: 'GroupReader', with_ids: bool) -> list[dict[str, object]]:
    return [{
        'name': job.name, 'schedule': job.schedule,
        'schedule_since_us': job.schedule_since, 'newest_tick_us': job.tick,
        'paused_since_us': job.paused_since,
        'paused_until_us': job.paused_until,
        'paused_objects': job.paused_objects,
        **({'paused_by': job.paused_by, 'paused_why': job.paused_why}
           if with_ids else {})} for job in store.jobs()]


def _members(store: 'GroupReader', with_ids: bool
             ) -> list[dict[str, object]]:
    from distperiodic.operator import members
    return [{
        'role': one.role, 'partition': one.part, 'name': one.name,
        'stopped': one.stopped, 'age_us': one.age, 'drained': one.drained,
        'pool_size': one.pool_size,
        'report': one.state if with_ids else {
            name: one.state[name] for name in _OF_REPORT if name in one.state}}
        for one in members.members(store)[:_ROWS]]


def _partitions(store: 'GroupReader') -> list[dict[str, object]]:
    from distperiodic.operator import partitions
    return [{
        'name': one.name, 'worker': one.active, 'since_us': one.since,
        'fence': one.fence,
        'workers': [{'worker': worker.process, 'role': str(worker.role)}
                    for worker in one.workers]}
        for one in partitions.partitions(store)]


def _queues(store: 'GroupReader', with_ids: bool) -> list[dict[str, object]]:
    from distperiodic.operator import task_queries
    return [{
        'name': one.name, 'waiting': one.waiting, 'goes_on': one.goes_on,
        'halted': one.halted_at is not None,
        'head_status': one.head_status and str(one.head_status),
        **({'head': one.head, 'why': one.halted_why} if with_ids else {})}
        for one in task_queries.queues(store)[:_ROWS]]


def _waiting(store: 'GroupReader', with_ids: bool) -> list[dict[str, object]]:
    from distperiodic.operator import waiting
    return [{
        'job': one.job, 'number': one.number, 'since_us': one.since,
        'claimed': one.claimed, 'complete': one.complete,
        **({'object': one.object} if with_ids else {})}
        for one in waiting.waiting(store)]


def _history(store: 'GroupReader', since: int, with_ids: bool
             ) -> list[dict[str, object]]:
    from distperiodic.operator import activity
    return [{
        'job': one.job, 'tick_us': one.tick, 'members': one.members,
        **{name: number for name, number in one.counts._asdict().items()
           if number},
        'late': one.late.text(), 'ran': one.ran.text(),
        **({'slowest': one.slowest, 'reason': one.reason} if with_ids
           else {})}
        for one in activity.history(
            store, job=None, since=since, limit=_ROWS)]


def _events(store: 'GroupReader', since: int, with_ids: bool
            ) -> list[dict[str, object]]:
    from distperiodic.operator import auditing
    found = []
    for one in auditing.events(store, since=since, limit=_ROWS):
        outcome = ('none' if one.outcome is None else
                   'not done' if one.not_done else
                   'unknown' if one.unknown else 'done')
        shown: dict[str, object] = {
            'at_us': one.at, 'verb': one.verb, 'outcome': outcome,
            'target': one.target}
        if with_ids:
            shown |= {'who': one.who, 'host': one.host, 'why': one.why,
                      'outcome': one.outcome,
                      'arguments': dict(one.arguments)}
        elif one.verb.startswith('task'):
            del shown['target']
        found.append(shown)
    return found


def _health(sources: Sources, with_ids: bool) -> dict[str, object]:
    facts = sources.facts()
    found = health.findings(facts)
    return {
        'unread': sorted(map(str, facts.unread)),
        'findings': [finding(one, with_ids) for one in found]}


def finding(one: Finding, with_ids: bool) -> dict[str, object]:
    """Return a finding about the health of the group."""
    if with_ids:
        return dict(one.shown)
    kind, _, name = one.about.partition(' ')
    if kind == 'object':
        name = name.partition('/')[0]
    elif kind == 'task':
        name = ''
    return {'code': one.code, 'severity': str(one.severity),
            'since_us': one.since, 'about': f'{kind} {name}'.strip()}
