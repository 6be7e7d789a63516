# SPDX-License-Identifier: Apache-2.0
"""All options of this library, registered lazily and read into plain values.

Public constructors take a ``conf``. This module never uses the global one.
"""

import copy
import dataclasses
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from oslo_db import options

from distperiodic import exceptions
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import partition as partition_
from distperiodic.core import times

LOG = logging.getLogger(__name__)

GROUP = 'distperiodic'
#: Prefix of the name of a partition's section.
PARTITION = 'partition:'
#: Value of ``connection`` that disables the store.
NO_STORE = 'none'
# Length of the database column that holds the group of a job.
_GROUP_LENGTH = 100

OPTS = [
    cfg.StrOpt(
        'backend_url', secret=True, default='',
        help='Coordination service through which the processes find each '
             'other, as a tooz URL. In production '
             'zookeeper://USER:PASSWORD@HOST1:2181,HOST2:2181 (changes are '
             'pushed, in milliseconds); for the processes of one host '
             'file:///DIRECTORY. redis:// and etcd3+http:// work too, by '
             'polling every coordinator_heartbeat_interval. Everything is '
             'kept in the namespace "distperiodic"; for zookeeper and redis '
             '?namespace=NAME behind the hosts names another one. A path and '
             'options that the driver does not know are refused. Empty: '
             'this process is alone and owns every object.'),
    cfg.StrOpt(
        'group', default='distperiodic',
        help='Name of the group that the processes of one service join; '
             'also part of the names of its queues. Two services that share '
             'coordination service or broker must have different groups, '
             'else each takes half of the other\'s objects.'),
    cfg.StrOpt(
        'member_id',
        help='Name of this process on the ring. A process that comes back '
             'under the same name finds its old objects, so that a restart '
             'moves none. Must differ between live processes: the second is '
             'refused. Unset: host name and the lowest free number on this '
             'host, kept by a lock in state_path.'),
    cfg.IntOpt(
        'hash_ring_replicas_count', default=40, min=1, max=10000,
        mutable=True,
        help='Points of this process on the ring; the others read them from '
             'its membership entry, so members may differ. Share of the '
             'objects = own points / all points. Higher: evener shares (at '
             '100 members, largest to mean share: 1.5 with 40, 1.2 with 512) '
             'and a slower rebuild of the ring (70 ms for 40,000 points). '
             'Changing it moves only the objects that must move.'),
    cfg.FloatOpt(
        'coordinator_heartbeat_interval', default=1.0, min=0.05, max=3600.0,
        help='Seconds between signs of life and looks at the members, for '
             'drivers that cannot push (file, redis, etcd); never longer '
             'than session_timeout / 5. Lower: joins and leaves are seen '
             'sooner, more requests. ZooKeeper pushes and ignores it.'),
    cfg.FloatOpt(
        'session_timeout', default=10.0, min=1.0, max=86400.0,
        help='Seconds without a sign of life after which the others take '
             'over the objects of a process. A dead process is replaced at '
             'most this + 1 s later; a process that is cut off stops '
             'starting work after 2/3 of it. Lower: faster take-over, and '
             'false ones under long pauses (GC, VM migration). A ZooKeeper '
             'server grants only 2 to 20 times its tickTime; "distperiodic '
             'doctor" shows what it granted. With a connection, at most '
             'lease; and while it is not set it follows late_claim_after, '
             'sweep_interval and lease where these are set and need another '
             'value.'),
    cfg.StrOpt(
        'dispatcher', default='local',
        choices=[
            ('local', 'run the work in this process\'s own pool'),
            ('messaging', 'send it to worker processes over transport_url')],
        help='Where the work that this process owns is run.'),
    cfg.IntOpt(
        'dispatch_batch_size', default=500, min=1, max=5000,
        help='Objects of one job and tick in one message, at the most. One '
             'confirmed message costs about as much as 500 ids in it. '
             'Higher: more objects a second; lower: less is repeated when a '
             'message is lost. Never more than a worker has room for.'),
    cfg.StrOpt(
        'connection', secret=True, default='',
        help='Database that holds the claims, as an SQLAlchemy URL such as '
             'postgresql://USER:PASSWORD@HOST/DATABASE, the same for all '
             'schedulers and workers of the group: postgresql, mysql (or '
             'MariaDB), or sqlite:////FILE for the processes of one host. '
             '"distperiodic db sync" makes its tables. Each tick of '
             'an object is then started under one claim, whatever dies. '
             'Empty: [database] connection of the same file, where the '
             'service has one of its own. If that is empty too: without a '
             'backend_url GROUP.sqlite in state_path, which the service '
             'makes itself; with one no store, so that only the ring divides '
             'the work. "none": no store in any case, and what a process '
             'has claimed goes with it.'),
    cfg.FloatOpt(
        'late_claim_after', default=5.0, min=0.1, max=86400.0,
        help='Seconds after its tick, but at most half a period, at which an '
             'object that its owner has not claimed is claimed by others. '
             'Lower: less lateness when members disagree or die, more '
             'statements. At most session_timeout, and half of it while this '
             'is not set and half of it is less than the default. A job '
             'whose misfire is skip is claimed by others only if its grace '
             'is longer than this. Without a connection it has no effect.'),
    cfg.FloatOpt(
        'sweep_interval', default=1.0, min=0.1, max=60.0,
        help='Seconds between two looks for claims whose lease has ended: '
             'retries that are due, and the work of processes that died. '
             'Every scheduler looks, which is one short statement on a small '
             'table. Lower: retries begin more exactly. Less than lease / 3, '
             'and at most session_timeout / 2; while it is not set, a tenth '
             'of the lesser of both where that is less than the default. '
             'Without a connection it has no effect.'),
    cfg.FloatOpt(
        'history_retention', default=30.0, min=0.0, max=36500.0,
        help='Days for which the history of ticks is kept. Every scheduler '
             'deletes what is older once a minute, in small steps. Higher: '
             '"distperiodic audit" and "distperiodic history" go back '
             'further, and the table is larger: a row of each job, tick and '
             'process. What is told of runs that failed for good, and claims '
             'of objects, stay until "distperiodic db prune". 0: schedulers '
             'delete nothing. Without a connection it has no effect.'),
    cfg.FloatOpt(
        'lease', default=60.0, min=1.0, max=604800.0,
        help='Seconds that work stays with a worker without a sign of life '
             'from it. The worker gives one every lease / 3. Work of a '
             'worker that left its group does not wait for this: it is taken '
             'back at once, but with a connection what had begun only when '
             'it was not renewed for session_timeout either. Lower: faster '
             'recovery from a lost report, more messages. Must be longer than '
             'the longest pause of a worker; with a connection, at least '
             'session_timeout, and the same in all processes of the group. '
             'While it is not set, twice session_timeout or send_timeout '
             'where that is more than the default.'),
    cfg.FloatOpt(
        'send_timeout', default=5.0, min=0.5, max=3600.0,
        help='Seconds that handing one message to the broker may take before '
             'it counts as not sent and the work is kept for another try. '
             'Lower than lease; while it is not set, half of lease or '
             'session_timeout where that is less than the default.'),
    cfg.IntOpt(
        'pool_size', default=10, min=1, max=1000,
        help='Threads that run handlers in this process; in a scheduler so '
             'many for each partition whose jobs it runs itself. Workers '
             'publish this number, and the schedulers send no more than it '
             'can take soon. Higher: more handlers that wait for I/O at a '
             'time; handlers that compute gain nothing above the number of '
             'cores.'),
    cfg.StrOpt(
        'state_path', default='',
        help='Directory, such as /var/lib/my-service, for the locks that give '
             'the processes of this host their numbers (see member_id), and '
             'for the claims of a service that has neither backend_url nor '
             'connection. It is made if it is not there; one that belongs to '
             'another user, that everybody may write, or that is a symbolic '
             'link is refused. Empty: a directory of this user under the '
             'system\'s temporary directory, which a host may clear when it '
             'starts.'),
    cfg.BoolOpt(
        'quorum_queues', default=False,
        help='Declare the queues as quorum queues, replicated in a RabbitMQ '
             'cluster, rather than durable ones on one node. Each process '
             'declares its own, and those with and without this option '
             'understand each other.'),
    cfg.MultiStrOpt(
        'signing_key', secret=True, default=[],
        help='Keys with which messages are signed (HMAC-SHA-256). The first '
             'signs, all are accepted, so a key is replaced by putting the '
             'new one first, then dropping the old. Set it where others may '
             'write to the broker: without a store a message is all that '
             'makes a worker start work. Unset: not signed.'),
]

#: Options of one partition, in a section of its own.
PARTITION_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        'max_in_flight', min=1,
        help='Objects of all jobs of one partition together that are at work '
             'at once, over all schedulers and workers. The section is '
             '[partition:NAME], and NAME the topic of the jobs. The '
             'max_in_flight of a job holds as well; jobs that run on every '
             'member are not counted. Higher: more load on what the handlers '
             'talk to; lower: what is due waits longer. Set it alike for all '
             'processes of the group. Without a connection it is divided by '
             'the schedulers. Unset: bounded only by the slots of the '
             'workers, see pool_size.'),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Values of the options at the start of the process. Times in seconds."""

    backend_url: str = dataclasses.field(repr=False)
    group: str
    member_id: str | None
    hash_ring_replicas_count: int
    coordinator_heartbeat_interval: float
    session_timeout: float
    dispatcher: str
    dispatch_batch_size: int
    connection: str = dataclasses.field(repr=False)
    late_claim_after: float
    sweep_interval: float
    #: Days. 0 means for ever.
    history_retention: float
    lease: float
    send_timeout: float
    pool_size: int
    state_path: str
    quorum_queues: bool
    signing_key: tuple[str, ...] = dataclasses.field(repr=False)
    #: Partitions by name. Only those with an option that is set.
    partitions: partition_.Partitions
    #: True if the store is a file that the service creates itself.
    embedded: bool

    @property
    def store_file(self) -> str:
        """Path of an embedded store."""
        return os.path.join(self.state_path, f'{self.group}.sqlite')


_TIMES: dict[str, float] = {
    opt.dest: opt.default for opt in OPTS if opt.dest in (
        'session_timeout', 'late_claim_after', 'sweep_interval', 'lease',
        'send_timeout')}


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options on *conf*. Repeated calls change nothing."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for oslo-config-generator."""
    return [(GROUP, copy.deepcopy(OPTS)),
            (f'{PARTITION}default', copy.deepcopy(PARTITION_OPTS))]


def _connection(conf: cfg.ConfigOpts, own: str) -> str:
    """Return the URL of the store. Empty means that there is none.

    :param own: Value of the option ``connection`` of this library.
    """
    if own:
        return '' if own == NO_STORE else own
    # Use the option object of oslo.db. The service may register it as well,
    # and a command must read the same value from the same file.
    conf.register_opts([opt for opt in options.database_opts
                        if opt.name == 'connection'], group='database')
    return conf.database.connection or ''


def _embedded(found: Settings) -> Settings:
    """Return settings with a store in a file, for a process that is alone.

    :raises ConfigError: The group or the state path cannot be part of the URL
        of the file.
    """
    member_.check_identity(found.group, 'group id')
    if '?' in found.state_path:
        raise exceptions.ConfigError(
            f'[{GROUP}] state_path {found.state_path!r} holds a "?", which '
            'ends the name of a file in the URL of the store; name another '
            'directory')
    return dataclasses.replace(
        found, connection=f'sqlite:///{found.store_file}', embedded=True)


def _values(conf: cfg.ConfigOpts, group: str,
            registered: Iterable[cfg.Opt]) -> dict[str, Any]:
    """Return the values of the options *registered*.

    :raises ConfigError: Some values are illegal. The message lists all of
        them.
    """
    values, refused = {}, []
    for opt in registered:
        try:
            value = values[opt.dest] = getattr(conf[group], opt.dest)
            # The limits of an option do not reject nan.
            if isinstance(value, float) and math.isnan(value):
                raise ValueError('nan is not a number')
        except (cfg.ConfigFileValueError, ValueError) as exc:
            # oslo.config shows the location of a value as a Python object.
            reason = re.sub(r"LocationInfo\(.*detail='([^']*)'\)", r'\1',
                            str(exc))
            refused.append(f'[{group}] {opt.dest}: {reason}')
    if refused:
        raise exceptions.ConfigError('; '.join(refused))
    return values


def _is_set(conf: cfg.ConfigOpts, name: str) -> bool:
    found = conf.get_location(name, GROUP)
    return (found is not None
            and found.location is not cfg.Locations.opt_default)


def files(conf: cfg.ConfigOpts) -> list[str]:
    """Return the configuration files of *conf*, in the order of reading."""
    found = list(conf.config_file or [])
    for place in conf.config_dir or []:
        found += sorted(
            os.path.join(place, name) for name in os.listdir(place)
            if name.endswith('.conf'))
    return found


def is_of_partition(section: str) -> bool:
    """Return whether *section* is the name of a partition's section."""
    return section.lower().startswith(PARTITION)


def _partitions(conf: cfg.ConfigOpts) -> partition_.Partitions:
    """Return the partitions that have a section with options.

    :raises ConfigError: A section has an illegal name, option or value.
    """
    sections = sorted(filter(is_of_partition, conf.list_all_sections()))
    found: dict[str, partition_.Partition] = {}
    alike: dict[str, str] = {}
    for section in sections:
        name = section[len(PARTITION):]
        if job_.TOPIC.fullmatch(name) is None:
            raise exceptions.ConfigError(
                f'[{section}]: {name!r} is not the name of a partition; '
                'give the topic of its jobs after the colon, 1 to 100 of '
                'A-Z a-z 0-9 . _ -')
        # oslo.config would merge the two sections.
        other = alike.setdefault(name.lower(), section)
        if other != section:
            raise exceptions.ConfigError(
                f'[{other}] and [{section}] differ in capital letters only, '
                'which sections cannot; give one of the topics another name')
        conf.register_opts(PARTITION_OPTS, group=section)
        values = _values(conf, section, PARTITION_OPTS)
        if any(value is not None for value in values.values()):
            found[name] = partition_.Partition(name, **values)
    if sections:
        for path in files(conf):
            _check_known(path)
    return found


def _check_known(path: str) -> None:
    """Check for unknown options in the sections of partitions.

    A misspelt limit would have no effect.

    :raises ConfigError: There is an unknown option.
    """
    read: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, read).parse()
    except (cfg.Error, OSError):
        # The file was readable before, so it is being changed now.
        return
    known = [opt.dest for opt in PARTITION_OPTS]
    for section in filter(is_of_partition, read):
        for option, values in read[section].items():
            if option.replace('-', '_') not in known:
                raise exceptions.ConfigError(
                    f'[{section}] {option} = {values[-1]} in {path}: a '
                    f'partition has no such option; it has '
                    f'{", ".join(known)}: correct the name, or remove it')


def value(conf: cfg.ConfigOpts, name: str) -> Any:
    """Return the value of one option, without checking the others.

    :raises ConfigError: The value is illegal.
    """
    register_opts(conf)
    return _values(conf, GROUP, [
        opt for opt in OPTS if opt.dest == name])[name]


def read_again(conf: cfg.ConfigOpts, name: str) -> Any:
    """Return the value of a mutable option after a reload of its file.

    None means that the new value is illegal. This is logged and not raised,
    because it must not end a running process.
    """
    try:
        return value(conf, name)
    except exceptions.ConfigError as exc:
        LOG.error('option refused: option=%s reason=%s; the value that it had '
                  'stays', name, exc)
        return None


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Read all options of *conf*, and check them against each other.

    :raises ConfigError: A value is illegal, or values contradict each other.
        The message gives the option, the value and the remedy.
    """
    register_opts(conf)
    values = _values(conf, GROUP, OPTS)
    values['signing_key'] = tuple(values['signing_key'])
    values['backend_url'] = values['backend_url'] or ''
    values['connection'] = _connection(conf, values['connection'] or '')
    values['state_path'] = os.path.abspath(
        values['state_path'] or os.path.join(
            tempfile.gettempdir(), f'distperiodic-{os.getuid()}'))
    store = bool(values['connection'])
    # A value that is set counts as given, even if it equals the default.
    given = {name: values[name] for name in _TIMES if _is_set(conf, name)}
    values |= times.fit(_TIMES, given, store=store)
    times.check(values, given, store=store)
    found = Settings(**values, partitions=_partitions(conf), embedded=False)
    if not (found.connection or found.backend_url
            or conf[GROUP].connection == NO_STORE):
        # A process that is alone uses an embedded store. The checks above ran
        # as if there were no store, because no other process shares its times.
        found = _embedded(found)
    if found.connection and len(found.group) > _GROUP_LENGTH:
        raise exceptions.ConfigError(
            f'[{GROUP}] group {found.group!r} has {len(found.group)} '
            f'characters, and a store takes {_GROUP_LENGTH}; give a shorter '
            'name')
    return found
