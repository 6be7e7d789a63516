# SPDX-License-Identifier: Apache-2.0
"""Every option, registered lazily and read once into plain values.

Public constructors take a ``conf``; nothing here touches the global one.
"""

import copy
import dataclasses
import re

from oslo_config import cfg

from distperiodic import exceptions

GROUP = 'distperiodic'
# Of the column that tells the jobs of services apart.
_GROUP_LENGTH = 100

OPTS = [
    cfg.StrOpt(
        'backend_url', secret=True, default='',
        sample_default='zookeeper://zk1:2181,zk2:2181,zk3:2181',
        help='Coordination service through which the processes find each '
             'other: a tooz URL. zookeeper://USER:PASSWORD@HOST1,HOST2 in '
             'production (changes are pushed, in milliseconds); '
             'file:///DIRECTORY for the processes of one host; redis:// and '
             'etcd3+http:// work, by polling every '
             'coordinator_heartbeat_interval. Empty: this process is alone '
             'and owns every object.'),
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
        'coordinator_heartbeat_interval', default=1.0, min=0.05,
        help='Seconds between signs of life and looks at the members, for '
             'drivers that cannot push (file, redis, etcd); never longer '
             'than session_timeout / 5. Lower: joins and leaves are seen '
             'sooner, more requests. ZooKeeper pushes and ignores it.'),
    cfg.FloatOpt(
        'session_timeout', default=10.0, min=1.0,
        help='Seconds without a sign of life after which the others take '
             'over the objects of a process. A dead process is replaced at '
             'most this + 1 s later; a process that is cut off stops '
             'starting work after 2/3 of it. Lower: faster take-over, and '
             'false ones under long pauses (GC, VM migration). A ZooKeeper '
             'server grants only 2 to 20 times its tickTime; "distperiodic '
             'doctor" shows what it granted.'),
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
        sample_default='postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE',
        help='Database that holds the claims, as an SQLAlchemy URL, the same '
             'for all schedulers and workers of the group: postgresql, mysql '
             '(or MariaDB), or sqlite:////FILE for the processes of one '
             'host. "distperiodic db sync" makes its tables. Each tick of '
             'an object is then started under one claim, whatever dies. '
             'Empty: there is no store, and only the ring divides the work.'),
    cfg.FloatOpt(
        'late_claim_after', default=5.0, min=0.1,
        help='Seconds after its tick, but at most half a period, at which an '
             'object that its owner has not claimed is claimed by others. '
             'Lower: less lateness when members disagree or die, more '
             'statements. Without a connection it has no effect.'),
    cfg.FloatOpt(
        'sweep_interval', default=1.0, min=0.1,
        help='Seconds between two looks for claims whose lease has ended: '
             'retries that are due, and the work of processes that died. '
             'Every scheduler looks, which is one short statement on a small '
             'table. Lower: retries begin more exactly. Less than lease / 3. '
             'Without a connection it has no effect.'),
    cfg.FloatOpt(
        'lease', default=60.0, min=1.0,
        help='Seconds that work stays with a worker without a sign of life '
             'from it. The worker gives one every lease / 3. Work of a '
             'worker that left its group is taken back at once and does not '
             'wait for this. Lower: faster recovery from a lost report, more '
             'messages. Must be longer than the longest pause of a worker.'),
    cfg.FloatOpt(
        'send_timeout', default=5.0, min=0.5,
        help='Seconds that handing one message to the broker may take before '
             'it counts as not sent and the work is kept for another try. '
             'Lower than lease.'),
    cfg.IntOpt(
        'pool_size', default=10, min=1, max=1000,
        help='Threads that run handlers in this process. Workers publish '
             'this number, and the schedulers send no more than it can take '
             'soon. Higher: more handlers that wait for I/O at a time; '
             'handlers that compute gain nothing above the number of cores.'),
    cfg.StrOpt(
        'state_path', default='',
        sample_default='/var/lib/my-service',
        help='Directory for the locks that give the processes of this host '
             'their numbers (see member_id). Empty: a directory of this user '
             'under the system\'s temporary directory.'),
    cfg.BoolOpt(
        'quorum_queues', default=False,
        help='Declare the queues as quorum queues, replicated in a RabbitMQ '
             'cluster, rather than durable ones on one node. Queues that '
             'exist must be deleted first: their type cannot change.'),
    cfg.MultiStrOpt(
        'signing_key', secret=True, default=[],
        help='Keys with which messages are signed (HMAC-SHA-256). The first '
             'signs, all are accepted, so a key is replaced by putting the '
             'new one first, then dropping the old. Set it where others may '
             'write to the broker: without a store a message is all that '
             'makes a worker start work. Unset: not signed.'),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The options as they stood when the process began; units in seconds."""

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
    lease: float
    send_timeout: float
    pool_size: int
    state_path: str
    quorum_queues: bool
    signing_key: tuple[str, ...] = dataclasses.field(repr=False)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options on *conf*; doing it again changes nothing."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options by group, for oslo-config-generator."""
    return [(GROUP, copy.deepcopy(OPTS))]


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Read all options of *conf* at once, and hold them against each other.

    :raises ConfigError: a value is not usable; the message names the option,
        the value and the remedy.
    """
    register_opts(conf)
    values = {}
    for opt in OPTS:
        try:
            values[opt.dest] = getattr(conf[GROUP], opt.dest)
        except (cfg.ConfigFileValueError, ValueError) as exc:
            # oslo.config shows where it found a value as a Python object.
            reason = re.sub(r"LocationInfo\(.*detail='([^']*)'\)", r'\1',
                            str(exc))
            raise exceptions.ConfigError(
                f'[{GROUP}] {opt.dest}: {reason}') from exc
    values['signing_key'] = tuple(values['signing_key'])
    for url in ('backend_url', 'connection'):
        values[url] = values[url] or ''
    found = Settings(**values)
    if found.connection and len(found.group) > _GROUP_LENGTH:
        raise exceptions.ConfigError(
            f'[{GROUP}] group {found.group!r} has {len(found.group)} '
            f'characters, and a store takes {_GROUP_LENGTH}; give a shorter '
            'name')
    if found.connection and found.sweep_interval >= found.lease / 3:
        raise exceptions.ConfigError(
            f'[{GROUP}] sweep_interval {found.sweep_interval:g} s must be '
            f'less than a third of lease {found.lease:g} s, or work that was '
            'lost is looked for too seldom; lower sweep_interval or raise '
            'lease')
    if found.send_timeout >= found.lease:
        raise exceptions.ConfigError(
            f'[{GROUP}] send_timeout {found.send_timeout:g} s must be less '
            f'than lease {found.lease:g} s, or work is sent again while it '
            'is still being sent; lower send_timeout or raise lease')
    return found
