# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor``.

Each check is a function, whose docstring the operator sees. The function
returns its finding and, if there is a problem, the remedy. The checks run in
the order of this file, the cheap checks first. They change nothing, with three
exceptions: ``state_path_writable`` may create a directory and a lock file,
``coordination_join`` joins a temporary group and leaves it again, and
``broker_rights`` creates a temporary queue and deletes it again.
"""

import contextlib
import dataclasses
import ipaddress
import os
import stat
from collections.abc import Iterator

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination import url as backend_url
from distperiodic.adapters.local.process_slot import ProcessSlot
from distperiodic.adapters.messaging import queue_names
from distperiodic.cmd import configured
from distperiodic.cmd.check import CHECKS
from distperiodic.cmd.check import Check
from distperiodic.cmd.check import check
from distperiodic.cmd.doctor_facts import DoctorFacts
from distperiodic.cmd.findings import CheckResult
from distperiodic.cmd.findings import NotNow
from distperiodic.cmd.findings import fail
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn
from distperiodic.core.member import parse_entry
from distperiodic.opts import Settings
from distperiodic.ports import BrokerProbe
from distperiodic.ports import QueueState

#: Difference between two clocks, in seconds, that causes a warning. Ticks that
#: follow the clock of a host are early or late by this difference.
SKEW = 0.5
#: A share above this multiple of the fair share causes a warning.
UNEVEN = 1.5


# -- options


@check('options', offline=True)
def options_usable(facts: DoctorFacts) -> CheckResult:
    """All options can be used, and fit together."""
    settings = facts.check_settings()
    if settings.backend_url:
        scheme = backend_url.check_backend_url(settings.backend_url)
        beat = settings.coordinator_heartbeat_interval
        if scheme not in backend_url.PUSHING and (
                beat > settings.session_timeout / 5):
            beat = settings.session_timeout / 5
        facts.check_broker()
        pace = '' if scheme in backend_url.PUSHING else (
            f', polled every {beat:g} s')
        return ok(f'{scheme}, group {settings.group}, '
                  f'{settings.hash_ring_replicas_count} points, dispatcher '
                  f'{settings.dispatcher}{pace}{_limits(settings)}')
    if settings.dispatcher == 'messaging':
        return fail('dispatcher = messaging, but backend_url is empty: '
                    'schedulers and workers find each other through the '
                    'coordination service', 'set backend_url')
    return ok('backend_url is empty: one process owns every object'
              f'{_limits(settings)}')


def _limits(settings: Settings) -> str:
    """Return the limits of partitions, as the end of a sentence."""
    return ''.join(
        f', at most {one.max_in_flight} in flight in partition {one.name}'
        for one in settings.partitions.values()
        if one.max_in_flight is not None)


@check('options', offline=True)
def options_known(facts: DoctorFacts) -> CheckResult:
    """No distperiodic option is misspelt: an unknown option has no effect."""
    odd = opts.unknown(facts.conf)
    if odd:
        return warn(f'without effect: {"; ".join(odd)}',
                    'correct the names and sections, or remove the options')
    files = len(opts.files(facts.conf))
    return ok(f'{configured.plural(files, "file")} read' if files else
              'no file was read; all options have their defaults or come '
              'from the environment')


@check('options', offline=True)
def secrets_private(facts: DoctorFacts) -> CheckResult:
    """Only owner and group can read the files that hold passwords or keys."""

    open_ = []
    for path in opts.files(facts.conf):
        sections: dict[str, dict[str, list[str]]] = {}
        with contextlib.suppress(cfg.Error, OSError):
            cfg.ConfigParser(path, sections).parse()
            holds = any(
                name == 'signing_key' or (
                    name in ('backend_url', 'transport_url', 'connection')
                    and any('@' in str(v) for v in values))
                for options in sections.values()
                for name, values in options.items())
            if holds and os.stat(path).st_mode & stat.S_IROTH:
                open_.append(path)
    if open_:
        return warn(f'readable by all users: {", ".join(open_)}',
                    f'chmod o-r {" ".join(open_)}')
    return ok('no file with a secret is readable by all users')


@check('options', offline=True)
def state_path_writable(facts: DoctorFacts) -> CheckResult:
    """state_path can hold the lock files that reserve a number for each
    process of this host.
    """
    if facts.settings.member_id is not None:
        return skip(f'member_id is set to {facts.settings.member_id}')
    ProcessSlot(facts.settings.state_path, 'check').leave()
    return ok(facts.settings.state_path)


@check('security', offline=True)
def connections_private(facts: DoctorFacts) -> CheckResult:
    """Connections to coordination services and brokers on other hosts are
    encrypted, since URLs carry passwords and messages start work.
    """
    settings = facts.settings
    bare, remedies = [], []
    if settings.backend_url and facts.scheme != 'file' and (
            not backend_url.has_tls(settings.backend_url)):
        bare += [f'{name} (backend_url)'
                 for name, _ in backend_url.addresses(
                     settings.backend_url)
                 if not _loopback(name)]
    if bare:
        remedies.append('add ?use_ssl=true&ca=FILE (ZooKeeper) or ?ssl=true '
                        '(Redis) to backend_url')
    if settings.dispatcher == 'messaging':
        for probe, host in facts.broker_hosts:
            if not probe.tls and not _loopback(host.name):
                bare.append(f'{host.name} (transport_url)')
                if probe.tls_remedy not in remedies:
                    remedies.append(probe.tls_remedy)
    if bare:
        return warn(f'no TLS to {configured.listed(bare)}',
                    f'{"; ".join(remedies)}; or use a private network')
    return ok('all connections to the coordination service and the brokers '
              'use TLS or stay on this host')


@check('security', offline=True)
def broker_user(facts: DoctorFacts) -> CheckResult:
    """The login at the broker is a secret, unlike RabbitMQ's user guest."""
    for probe, host in facts.broker_hosts:
        found = probe.open_to_all(host)
        if found is not None and not _loopback(host.name):
            return warn(*found)
    return ok('the login is a secret, or the broker is on this host')


@check('security', offline=True)
def messages_signed(facts: DoctorFacts) -> CheckResult:
    """Messages are signed if others may write to the broker: without a store,
    a message alone makes a worker start work.
    """
    remote = [host.name for _, host in facts.broker_hosts
              if not _loopback(host.name)]
    if facts.settings.signing_key:
        keys = configured.plural(len(facts.settings.signing_key), 'key')
        return ok(f'signed, {keys} accepted')
    if remote:
        return warn('not signed, and the broker is on another host',
                    'set signing_key to the same secret for all schedulers '
                    'and workers, unless only they may write to this vhost')
    return ok('not signed; the broker is on this host')


# -- coordination


@check('coordination')
def coordination_servers(facts: DoctorFacts) -> CheckResult:
    """Each server of backend_url answers."""
    settings = facts.settings
    if facts.scheme == 'file':
        path = backend_url.directory(settings.backend_url)
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return ok(f'{path} can be written')
        parent = os.path.dirname(path.rstrip('/')) or '/'
        if not os.path.exists(path) and os.access(parent, os.W_OK):
            return ok(f'{path} does not exist yet and can be created')
        return fail(f'{path} cannot be written',
                    f'create it for this user: install -d -o $USER {path}')
    from distperiodic.operator import coordination_probe
    found = coordination_probe.servers(settings.backend_url)
    states = '; '.join(f'{s.address} {s.state}' for s in found)
    silent = [s.address for s in found if not s.answers]
    if len(silent) == len(found):
        return fail(states, 'start the service, or correct backend_url')
    if silent:
        return warn(states, f'repair {", ".join(silent)}: until then, the '
                    'service tolerates fewer failures')
    if len(found) == 2 and facts.scheme in ('zookeeper', 'kazoo'):
        return warn(f'{states}; two servers tolerate no failure',
                    'run three servers: the service needs a majority')
    return ok(states)


@check('coordination')
def coordination_join(facts: DoctorFacts) -> CheckResult:
    """A group can be joined, with the session timeout that was requested."""
    asked = facts.settings.session_timeout
    granted = facts.joined.granted
    if granted is None:
        return warn('joined, but the session timeout is unknown',
                    'see the log of the coordination service')
    if abs(granted - asked) > 0.05 * asked:
        where = ('file, redis and etcd use the timeout in backend_url, or '
                 'else session_timeout in whole seconds'
                 if facts.scheme not in backend_url.PUSHING else
                 'ZooKeeper grants 2 to 20 times its tickTime (or '
                 'minSessionTimeout to maxSessionTimeout)')
        return warn(
            f'requested {asked:g} s, granted {granted:g} s; members use the '
            f'granted value, and a dead member is replaced after at most '
            f'{granted + 1:g} s',
            f'set session_timeout = {granted:g}, or change the server: '
            f'{where}')
    return ok(f'joined and left; session timeout {granted:g} s, as requested')


@check('coordination')
def coordination_private(facts: DoctorFacts) -> CheckResult:
    """Only authorized users may write to the groups in the coordination
    service: a process that may write can join as a member and own objects.
    """
    open_ = facts.survey.writable_by_all()
    if open_ is None:
        return skip(f'{facts.scheme} does not report permissions')
    if not open_:
        return ok('not writable by all')
    if facts.scheme == 'file':
        return warn('the directory is writable by every user of this host',
                    'chmod o-w the directory')
    text = 'every client may write to the namespace'
    remedy = ('put USER:PASSWORD@ into backend_url before the namespace is '
              'created (it then belongs to that user), or block other '
              'clients with a firewall')
    if _is_remote(facts.settings.backend_url):
        return warn(text, remedy)
    return ok(f'{text}, but the server is on this host')


# -- the group


@check('ring')
def ring_points(facts: DoctorFacts) -> CheckResult:
    """All members have the same number of points. A member with more points
    owns more objects.
    """
    points = {m.points for m in facts.populated.members if m.points}
    if len(points) > 1:
        return ok(f'{min(points)} to {max(points)} points, so one member may '
                  f'own {max(points) / min(points):.1f} times as many objects '
                  'as another; no action is needed if this is intended')
    return ok(f'{points.pop()} points each')


@check('ring')
def ring_shares(facts: DoctorFacts) -> CheckResult:
    """No member has more than 1.5 times its fair share of the objects."""
    group = facts.populated
    names = [m.identity for m in group.members if m.points]
    worst = max(names, key=group.of_fair)
    ratio = group.of_fair(worst)
    if ratio > UNEVEN:
        return warn(f'{worst} has {ratio:.2f} times its fair share',
                    'raise hash_ring_replicas_count; to find a value: '
                    f'distperiodic ring simulate --members {len(names)}')
    return ok(f'largest: {worst}, {ratio:.2f} times its fair share')


# -- time


@check('time')
def clock_of_this_host(facts: DoctorFacts) -> CheckResult:
    """This host's clock agrees with the coordination service's clock."""
    skew = facts.joined.skew
    if skew is None:
        return skip(f'{facts.scheme} does not report its time')
    if abs(skew) > SKEW:
        return warn(f'{_ahead(skew)} the service\'s clock',
                    'run chrony or ntpd on both hosts; until then, member '
                    'jobs and, without a store, all jobs start early or late '
                    'by this difference')
    return ok(f'{_ahead(skew)} the service\'s clock')


@check('time')
def clocks_of_members(facts: DoctorFacts) -> CheckResult:
    """The members' clocks agreed with the coordination service's clock when
    they joined, and therefore with each other.
    """
    if not facts.populated.skews:
        return skip(f'{facts.scheme} does not report its time')
    skews = {}
    for entry, skew in facts.group.skews.items():
        member = parse_entry(entry)
        if member is not None:
            skews[member.identity] = skew
    wrong = [f'{name}: {_ahead(skew)}' for name, skew in sorted(
        skews.items()) if abs(skew) > SKEW]
    if wrong:
        return warn(f'{configured.listed(wrong)} the service\'s clock',
                    'run chrony or ntpd on their hosts')
    return ok(f'within {max(map(abs, skews.values())):.2f} s of the '
              'service\'s clock')


# -- the broker


@check('broker')
def broker_reachable(facts: DoctorFacts) -> CheckResult:
    """Every server of transport_url accepts the login."""
    bad = []
    for probe, host in facts.broker_hosts:
        try:
            probe.check(host)
        except exceptions.BusUnavailable as exc:
            bad.append(str(exc))
    hosts = configured.listed([
        f'{host}, {probe.space}' for probe, host in facts.broker_hosts])
    if not bad:
        return ok(hosts)
    found, _, remedy = bad[0].rpartition('; ')
    if len(bad) == len(facts.broker_hosts):
        return fail(found if len(bad) == 1 else
                    f'{found}, and {len(bad) - 1} more', remedy)
    return warn(found, remedy)


@check('broker')
def broker_rights(facts: DoctorFacts) -> CheckResult:
    """The login may create a queue, send to it, and read from it."""
    queue = queue_names.probe_queue(facts.settings.group)
    answered = 0
    for probe in dict.fromkeys(facts.brokers.values()):
        try:
            host = probe.find()
        except exceptions.BusUnavailable:
            continue
        answered += 1
        try:
            probe.check_rights(host, queue)
        except exceptions.BusUnavailable as exc:
            found, _, remedy = str(exc).rpartition('; ')
            return fail(found, remedy)
    if not answered:
        raise NotNow('no broker accepts the login')
    return ok('created, used and deleted a temporary queue')


@check('broker')
def broker_settings(facts: DoctorFacts) -> CheckResult:
    """No setting of a broker makes it lose messages."""
    found, answered = [], 0
    for probe in dict.fromkeys(facts.brokers.values()):
        with contextlib.suppress(exceptions.BusUnavailable):
            found += probe.weaknesses(probe.find())
            answered += 1
    if found:
        return warn('; '.join(one.problem for one in found), '; '.join(
            dict.fromkeys(one.remedy for one in found)))
    if not answered:
        raise NotNow('no broker accepts the login')
    return ok('the broker deletes no waiting messages')


@check('broker')
def broker_queues(facts: DoctorFacts) -> CheckResult:
    """Every live process has its own queue, and consumes from it."""
    name, group = facts.settings.group, facts.populated
    main = facts.brokers['']
    topic = queue_names.reports_topic(name)
    reports = {f'{topic}.{queue_names.queue_of(m.process)}'
               for m in group.members if m.points}
    queues: dict[BrokerProbe, set[str]] = {
        probe: set(reports) for probe in facts.brokers.values()}
    for partition, workers in group.workers.items():
        queues[facts.brokers.get(partition, main)] |= {
            f'{queue_names.work_topic(name, partition)}.'
            f'{queue_names.queue_of(worker.process)}' for worker in workers}
    found: list[tuple[str, QueueState | None]] = []
    for probe, names in queues.items():
        try:
            found += probe.queues(probe.find(), sorted(names)).items()
        except exceptions.BusUnavailable:
            raise NotNow('no broker accepts the login') from None
    missing = [q for q, state in found if state is None]
    unread = [q for q, state in found if state and not state.consumers]
    if missing or unread:
        return fail(
            '; '.join(text for names, text in (
                (missing, f'no queue: {configured.listed(missing)}'),
                (unread, f'no consumer: {configured.listed(unread)}'))
                if names),
            'the processes of these queues use another broker or vhost, or '
            'have just lost their connection: compare transport_url, and read '
            'their logs')
    waiting = sum(state.messages for _, state in found if state)
    return ok(f'{configured.plural(len(found), "queue")}, each with a '
              f'consumer; {configured.plural(waiting, "message")} waiting')


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.partition('.')[0] == 'localhost'


def _is_remote(service: str) -> bool:
    return any(not _loopback(name)
               for name, _ in backend_url.addresses(service))


def _ahead(skew: float) -> str:
    if abs(skew) < 0.01:
        return 'within 0.01 s of'
    return f'{abs(skew):.2f} s {"ahead of" if skew > 0 else "behind"}'


# -- health


def group_health(facts: DoctorFacts) -> CheckResult:
    """The group is well. distperiodic status shows the same findings."""
    if not facts.started:
        return skip('no process of the group has started yet')
    assert not facts.findings
    return ok('all is well')


def _health(facts: DoctorFacts) -> Iterator[tuple[Check, CheckResult]]:
    """Yield the findings about the group, each as a check of its own."""
    one = Check(group_health.__name__, 'health', False, group_health)
    try:
        found = [finding for finding in facts.findings
                 if facts.started or finding.code != 'no-scheduler']
    except (NotNow, exceptions.DistperiodicError):
        # Its check reports the reason, or is skipped like this one.
        found = []
    if not found:
        yield one, one.run(facts)
    for finding in found:
        yield dataclasses.replace(one, name=finding.code), (
            fail if finding.severity == 'failure' else warn)(
                f'{finding.about}: {finding.text}', finding.remedy)


def run_all(facts: DoctorFacts) -> Iterator[tuple[Check, CheckResult]]:
    """Run every check; yield each with its finding as soon as it ends."""
    for one in CHECKS:
        if facts.offline and not one.offline:
            yield one, skip('--offline')
        else:
            yield one, one.run(facts)
    if not facts.offline:
        yield from _health(facts)
