# SPDX-License-Identifier: Apache-2.0
"""All options of this library.

The options are registered when one of them is first read. The values of all
options are read into an object of the class :class:`Settings`. This module
uses the configuration that its callers pass, never the global one.
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
from distperiodic.core import redaction
from distperiodic.core import times
from distperiodic.core.job import TOPIC
from distperiodic.core.listen import parse_address
from distperiodic.core.member import check_identity
from distperiodic.core.partition import Partition
from distperiodic.core.partition import Partitions
from distperiodic.core.suggestion import did_you_mean

LOG = logging.getLogger(__name__)

GROUP = 'distperiodic'
#: Prefix of the name of a configuration section that describes a partition.
PARTITION = 'partition:'
#: Value of ``connection`` that disables the store.
NO_STORE = 'none'
# Length of the database column that holds the group of a job.
_GROUP_LENGTH = 100

OPTS = [
    cfg.StrOpt(
        'backend_url', secret=True, default='',
        help='Coordination service through which the processes find each '
             'other, as a tooz URL. For production: '
             'zookeeper://USER:PASSWORD@HOST1:2181,HOST2:2181. ZooKeeper '
             'pushes each change of the members within milliseconds. For the '
             'processes of one host: file:///DIRECTORY. redis:// and '
             'etcd3+http:// work as well; the processes then poll the members '
             'every coordinator_heartbeat_interval. All data is in the '
             'namespace "distperiodic"; with zookeeper and redis, append '
             '?namespace=NAME to the hosts to use another one. A path after '
             'the hosts, and an option that the driver does not know, are '
             'refused. Empty: this process runs alone and owns every object.'),
    cfg.StrOpt(
        'group', default='distperiodic',
        help='Name of the group that the processes of one service join. The '
             'names of the service\'s queues contain it. Two services that '
             'share a coordination service or a broker need different '
             'groups: otherwise each takes over a part of the other\'s '
             'objects.'),
    cfg.StrOpt(
        'member_id',
        help='Name of this process on the ring. A process that restarts '
             'under the same name owns the same objects as before. The name '
             'must be unique among live processes: a second process with the '
             'same name is refused. Unset: the host name and the lowest free '
             'number on this host, which a lock in state_path reserves.'),
    cfg.IntOpt(
        'hash_ring_replicas_count', default=40, min=1, max=10000,
        mutable=True,
        help='Number of points of this process on the ring. Each process '
             'publishes its number in its membership entry, so members may '
             'have different numbers. Share of the objects = points of the '
             'process / points of all processes. Higher: more even shares '
             '(with 100 members the largest share is 1.5 times the mean with '
             '40 points, 1.1 times with 512) and a slower rebuild of the ring '
             '(70 ms for 40,000 points). A change moves only the objects of '
             'the points that are added or removed.'),
    cfg.FloatOpt(
        'coordinator_heartbeat_interval', default=1.0, min=0.05, max=3600.0,
        help='Seconds between heartbeats, and between polls of the members, '
             'for drivers that cannot push (file, redis, etcd). At most '
             'session_timeout / 5 is used. Lower: members notice joins and '
             'leaves sooner, at the cost of more requests. With ZooKeeper, '
             'which pushes changes, the option has no effect.'),
    cfg.FloatOpt(
        'session_timeout', default=10.0, min=1.0, max=86400.0,
        help='Seconds without a heartbeat after which the other members take '
             'over the objects of a process. A dead process is replaced at '
             'most 1 s after that time. Without a store, a process that '
             'cannot reach the coordination service starts no more work after '
             '2/3 of session_timeout. Lower: faster take-overs, but also '
             'unnecessary ones during long pauses (garbage collection, VM '
             'migration). A '
             'ZooKeeper server grants only 2 to 20 times its tickTime; '
             '"distperiodic doctor" shows the granted value. With a '
             'connection, the value must be at most lease. Unset: the '
             'default, adapted to late_claim_after, sweep_interval and lease '
             'if these are set and need another value.'),
    cfg.StrOpt(
        'dispatcher', default='local',
        choices=[
            ('local', 'run the work in this process\'s own pool'),
            ('messaging', 'send the work to worker processes over '
                          'transport_url')],
        help='Where to run the objects that this process owns.'),
    cfg.IntOpt(
        'dispatch_batch_size', default=500, min=1, max=5000,
        help='Maximum number of objects of one job and tick in one message. '
             'The fixed cost of a confirmed message is about that of 500 ids. '
             'Higher: more objects per second. Lower: fewer runs are '
             'repeated after a message is lost. A scheduler never sends a '
             'worker more objects than the worker can accept.'),
    cfg.StrOpt(
        'connection', secret=True, default='',
        help='Database that holds the claims, as an SQLAlchemy URL such as '
             'postgresql://USER:PASSWORD@HOST/DATABASE. All schedulers and '
             'workers of the group must use the same database; use '
             'sqlite:////FILE only for the processes of one host. The '
             'documentation lists the databases in "Run a service under a '
             'supervisor". "distperiodic db sync" creates the tables. With a '
             'database, each tick of an object starts under exactly one '
             'claim, even if processes crash. Empty: the value of [database] '
             'connection, if the configuration has one. If both are empty and '
             'there is no backend_url, the service creates the file '
             'GROUP.sqlite in state_path. If both are empty and there is a '
             'backend_url, there is no store, and only the ring divides the '
             'work. "none": no store in any case; when a process ends, its '
             'claims are lost.'),
    cfg.FloatOpt(
        'late_claim_after', default=5.0, min=0.1, max=86400.0,
        help='Seconds from a tick until other members claim an object that '
             'its owner has not claimed. At most half of the job\'s period is '
             'used. Lower: shorter delays when members disagree or die, at '
             'the cost of more statements. The value must be at most '
             'session_timeout. Unset: the default, or half of session_timeout '
             'if that is less. For a job with misfire=\'skip\' the option has '
             'an effect only if the grace of the job is longer. Without a '
             'store it has no effect.'),
    cfg.FloatOpt(
        'sweep_interval', default=1.0, min=0.1, max=60.0,
        help='Seconds between two searches for expired leases: retries that '
             'are due, and the work of processes that died. Every scheduler '
             'searches, with one short statement on a small table. Lower: '
             'retries start more punctually. The value must be less than '
             'lease / 3 and at most session_timeout / 2. Unset: the default, '
             'or a tenth of the smaller one of lease and session_timeout if '
             'that is less. Without a store the option has no effect.'),
    cfg.FloatOpt(
        'history_retention', default=30.0, min=0.0, max=36500.0,
        help='Days for which the history of ticks is kept. Once a minute '
             'every scheduler deletes older rows in small steps. Higher: '
             '"distperiodic audit" and "distperiodic history" reach further '
             'back, and the table is larger: it has one row per job, tick '
             'and process. The option also applies to the records of runs '
             'that failed for good, unless the object is still dead; to the '
             'records of operators\' actions; and to members that no longer '
             'report, unless they are drained or an operator has set an '
             'option of theirs. Claims of objects stay until "distperiodic db '
             'prune" deletes them. 0: schedulers delete none of these. '
             'Without a store the option has no effect.'),
    cfg.FloatOpt(
        'task_retention', default=30.0, min=0.0, max=36500.0,
        help='Days for which a task is kept after its end. Once a minute '
             'every scheduler deletes older tasks in small steps: those that '
             'succeeded, failed or were cancelled. Stuck tasks stay, and so '
             'does the task that halted an ordered queue until the queue is '
             'resumed. The key of a deleted task can be used again. Ordered '
             'queues without tasks are deleted as well, unless they are '
             'halted or set to go on after a failure. Higher: "distperiodic '
             'task show" reaches further back, and the table is larger. 0: '
             'only "distperiodic db prune" deletes tasks. Without a store the '
             'option has no effect.'),
    cfg.FloatOpt(
        'bucket_timeout', default=3600.0, min=0.1, max=31536000.0,
        help='Seconds without a call of a worker after which the tasks in '
             'its bucket of a task dispenser go back to the pool. Each call '
             'of the worker restarts this time. Lower: the tasks of a '
             'worker that is gone are offered sooner. The value must be '
             'longer than the longest time that a worker works without a '
             'call: otherwise other workers get its tasks, and tasks_done() '
             'returns False. For each worker, the value of the process that '
             'made the last call of the worker applies.'),
    cfg.FloatOpt(
        'done_retention', default=1.0, min=0.0, max=36500.0,
        help='Days for which a task dispenser remembers a task that is done, '
             'so that it does not offer the task again. A task that '
             'recreate_task_pool() still names is remembered for longer. '
             'Higher: recreate_task_pool() may be called with older data, '
             'and the table of tasks is larger.'),
    cfg.FloatOpt(
        'lease', default=60.0, min=1.0, max=604800.0,
        help='Seconds until work is reclaimed from a worker that sends no '
             'heartbeat for this work. A worker sends a heartbeat every '
             'lease / 4 and, with a connection, at least every '
             'session_timeout / 4. Work of a worker that has left its group '
             'is reclaimed at once. With a connection, runs that have started '
             'are reclaimed only if their lease has also not been renewed '
             'for session_timeout. Lower: faster recovery from a lost '
             'report, at the cost of more messages. The value must be longer '
             'than the longest pause of a worker. With a connection, it must '
             'be at least session_timeout, and the same in all processes of '
             'the group. Unset: the largest of the default, twice '
             'session_timeout, twice send_timeout and, with a connection, '
             'six times sweep_interval.'),
    cfg.FloatOpt(
        'send_timeout', default=5.0, min=0.5, max=3600.0,
        help='Seconds until a message that the broker has not confirmed '
             'counts as not sent; its work is then sent again. The value '
             'must be less than lease. Unset: the default, or half of the '
             'smaller one of lease and session_timeout if that is less.'),
    cfg.IntOpt(
        'pool_size', default=10, min=1, max=1000,
        help='Number of threads that run handlers in this process. A '
             'scheduler starts this number for each partition whose jobs it '
             'runs itself. With a store, or with dispatcher = messaging, it '
             'starts the same number for the jobs that run on every member. '
             'A worker publishes this number, and the '
             'schedulers send the worker no more objects than it can run '
             'soon. '
             'Higher: more handlers can wait for I/O at the same time. '
             'Handlers that compute gain nothing beyond the number of '
             'cores.'),
    cfg.StrOpt(
        'state_path', default='',
        help='Directory, such as /var/lib/my-service. It holds the locks '
             'that reserve a number for each process of this host (see '
             'member_id), and the claims of a service that has neither '
             'backend_url nor connection. A missing directory is created. A '
             'directory of another user except root, a directory that every '
             'user may write to, and a symbolic link are refused. Empty: a '
             'directory '
             'of this user in the temporary directory of the system, which '
             'may be cleared when the host boots.'),
    cfg.StrOpt(
        'workflows', default='',
        help='File of the workflows, in YAML or JSON: for each type of task '
             'a list of steps. A process that submits tasks reads the file '
             'when it submits its first task. Schedulers and workers with '
             'commands read the file when they start, and log its errors. A '
             'task keeps the workflow with which it was submitted, so a '
             'change of the file applies to new tasks only. Empty: a program '
             'can submit only tasks of one step and tasks of the workflows '
             'that it passes itself.'),
    cfg.StrOpt(
        'metrics_listen', default='',
        help='Address HOST:PORT at which the metrics are served for '
             'Prometheus, for example 127.0.0.1:9464. One address serves the '
             'sum of all processes of a host that have the same value and the '
             'same state_path: schedulers, workers, and the processes that '
             'they fork. The metrics need no password, so choose an interface '
             'that only your monitoring can reach. Needs the extra metrics. '
             'Empty: nothing listens, and nothing is counted for metrics.'),
    cfg.BoolOpt(
        'traces', default=False,
        help='Create OpenTelemetry spans: a scheduler one for each batch, and '
             'a worker one for each run, which is linked to that of its '
             'batch. A client of tasks stores the trace of the caller with '
             'each task. The process must configure an OpenTelemetry SDK, '
             'for example with opentelemetry-instrument; without one, there '
             'are no spans. The span of a run has the id of its object. '
             'Needs the extra otel. False: opentelemetry is not imported, and '
             'nothing is sent for traces.'),
    cfg.BoolOpt(
        'web_actions', default=False,
        help='Allow actions on the page: pause a job, requeue objects, cancel '
             'a task, drain a member and so on. The rules of oslo.policy '
             'decide who may do what ([oslo_policy] policy_file, '
             'etc/distperiodic.policy.yaml.sample), and each action is '
             'recorded with its operator. Needs a connection whose user may '
             'write. If false, the page only reads.'),
    cfg.StrOpt(
        'web_identity', default='local',
        choices=[
            ('local', 'the user who runs "distperiodic web", in a browser '
                      'that has opened the address which the command prints'),
            ('remote_user', 'the variable REMOTE_USER of the server'),
            ('keystone', 'the user and the roles that keystonemiddleware has '
                         'confirmed')],
        help='Source of the identity of an operator who acts on the page. '
             'Nothing else is believed, whatever headers a request has. With '
             'local, actions are not possible on a page that is mounted in '
             'another server. REMOTE_USER has no roles, so its users need a '
             'rule of the policy.'),
    cfg.StrOpt(
        'web_secret', secret=True, default='',
        help='Key that signs the forms of the page, so that no other site can '
             'act in the name of an operator. Set the same long random text, '
             'for example of "openssl rand -hex 32", in all processes that '
             'serve the page under one address. Empty: each process uses a '
             'new key, so a form is accepted only by the process that has '
             'made it, and until this process ends.'),
    cfg.BoolOpt(
        'quorum_queues', default=False,
        help='Declare the queues as quorum queues, which a RabbitMQ cluster '
             'replicates, instead of durable queues on one node. Each '
             'process declares its own queue, so processes with and without '
             'this option work together.'),
    cfg.MultiStrOpt(
        'signing_key', secret=True, default=[],
        help='Keys that sign the messages (HMAC-SHA-256). The first key '
             'signs, and signatures of all keys are accepted. To replace a '
             'key, add the new key as the second one in all processes, then '
             'put it first in all processes, then remove the old key. Set a '
             'key if others can write to the broker: without a store, a '
             'message alone makes a worker start work. Unset: messages are '
             'not signed.'),
]

#: Options of a section ``[partition:NAME]``.
PARTITION_OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        'max_in_flight', min=1,
        help='Maximum number of objects that the jobs of one partition run '
             'at the same time, across all schedulers and workers. The '
             'section is [partition:NAME], where NAME is the topic of the '
             'jobs, unless the option topic gives another topic. The '
             'max_in_flight of a job applies as well. Jobs that '
             'run on every member do not count. Higher: more load on the '
             'systems that the handlers use. Lower: due work waits longer. '
             'Set the same value in all processes of the group. Without a '
             'connection the schedulers divide the number among themselves. '
             'Unset: only the slots of the workers limit the partition, see '
             'pool_size.'),
    cfg.StrOpt(
        'executor',
        choices=[
            ('thread', 'threads of the service'),
            ('process', 'processes of their own, pool_size of them')],
        help='Where the handlers of the partition run. A thread whose handler '
             'exceeds the timeout of its job cannot be stopped: the handler '
             'continues, but its result does not count. A process in this '
             'case is killed, with the programs that it has started, and '
             'replaced. Processes are not forked: each imports the class of '
             'the tasks and builds it as CLASS(conf) from the configuration '
             'files. Unset: thread.'),
    cfg.StrOpt(
        'transport_url', secret=True,
        help='Broker that carries the work of the partition to its workers '
             'and their reports back, in the form of [DEFAULT] '
             'transport_url. Set the same broker for the schedulers and for '
             'the workers of the partition. While this broker is unreachable, '
             'only the work of this partition waits. The option has an effect '
             'only with dispatcher = messaging. Unset: [DEFAULT] '
             'transport_url.'),
    cfg.StrOpt(
        'topic',
        help='Topic of the jobs of the partition. Two sections may have the '
             'same topic only if all their other options are equal. Unset: '
             'NAME.'),
    cfg.IntOpt(
        'pool_size', min=1, max=1000,
        help='Number of threads, or of processes, that run the handlers of '
             'the partition in one scheduler or worker. Each partition has '
             'its own pool, so a slow partition does not delay the others. '
             'Unset: [distperiodic] pool_size.'),
    cfg.StrOpt(
        'mode',
        choices=[
            ('shared', 'all workers of the partition run its jobs'),
            ('standby', 'one worker is active; the others wait to take over')],
        help='Which workers of the partition run its jobs. With standby, '
             'the active worker releases the partition after its last run if '
             'it is stopped or drained, or if another worker is promoted. '
             'Then another worker takes over at once. Otherwise another '
             'worker takes over when the active worker has left its group and '
             'has sent no heartbeat to the store for session_timeout, at most '
             '1 s after both conditions hold. The value standby needs '
             'dispatcher = messaging, a backend_url and a connection. Set the '
             'same value in all processes of the group. Unset: shared.'),
    cfg.StrOpt(
        'preferred',
        help='With mode = standby, the host or the member that takes over if '
             'several workers can. The preferred worker does not replace an '
             'active worker; "distperiodic partition promote" does. Unset: '
             'the first worker that asks the store takes over.'),
    cfg.StrOpt(
        'handler',
        help='Class of the tasks whose handlers run the jobs of the '
             'partition, as MODULE:CLASS or as the name of an entry point of '
             'the group distperiodic.handlers. Only the processes that run '
             'the jobs import the class: the workers of the partition, or '
             'schedulers that run the jobs themselves. The class is built as '
             'CLASS(conf). It must declare the jobs under the same names as '
             'the class of the schedulers. Unset: the class with which the '
             'service is started.'),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Values of the options at the start of the process.

    Times are in seconds if no other unit is given.
    """

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
    #: Days until a row of the history is deleted. 0 means never.
    history_retention: float
    #: Days from the end of a task until the task is deleted. 0 means never.
    task_retention: float
    #: Seconds.
    bucket_timeout: float
    #: Days until done tasks of a pool are deleted.
    done_retention: float
    lease: float
    send_timeout: float
    pool_size: int
    state_path: str
    workflows: str
    metrics_listen: str
    traces: bool
    web_actions: bool
    web_identity: str
    web_secret: str = dataclasses.field(repr=False)
    quorum_queues: bool
    signing_key: tuple[str, ...] = dataclasses.field(repr=False)
    #: Partitions by topic. Partitions for which no option is set are left out.
    partitions: Partitions
    #: True if the store is a file that the service creates itself.
    embedded: bool

    def pool_size_of(self, topic: str) -> int:
        """Return the number of threads or processes for the jobs of *topic*.
        """
        partition = self.partitions.get(topic)
        return (partition and partition.pool_size) or self.pool_size

    def topic_of(self, partition: str) -> str:
        """Return the topic of the partition with this name.

        If no section describes the partition, its name is its topic.
        """
        return next((topic for topic, one in self.partitions.items()
                     if partition in (one.name, *one.other_names)), partition)

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
    """Return the URL of the store. Empty means that there is no store.

    :param own: Value of the option ``connection`` of this library.
    """
    if own:
        return '' if own == NO_STORE else own
    # Use the option object of oslo.db, because the service may register this
    # option as well. A command must read the same value from the same file.
    registered = [opt for opt in options.database_opts
                  if opt.name == 'connection']
    conf.register_opts(registered, group='database')
    return _values(conf, 'database', registered)['connection'] or ''


def _embedded(found: Settings) -> Settings:
    """Return *found* with an embedded store, for a process that runs alone.

    :raises ConfigError: The state path cannot be part of the URL of the file.
    """
    if '?' in found.state_path:
        raise exceptions.ConfigError(
            f'[{GROUP}] state_path {found.state_path!r} contains a "?", '
            'which would end the file name in the store\'s URL; choose a '
            'directory without one')
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
            # oslo.config accepts nan even if the option has limits.
            if isinstance(value, float) and math.isnan(value):
                raise ValueError('nan is not a number')
        except (cfg.ConfigFileValueError, ValueError) as exc:
            # oslo.config puts the repr() of an object into the message. Keep
            # only the location of the value.
            reason = re.sub(r"LocationInfo\(.*detail='([^']*)'\)", r'\1',
                            str(exc))
            refused.append(f'[{group}] {opt.dest}: {reason}')
        except cfg.NoSuchOptError:
            # The text of the error may be a part of a password.
            refused.append(
                f'[{group}] {opt.dest}: a "$" in the value begins the name of '
                'an option that does not exist; write "$$" for each "$"')
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


def unknown(conf: cfg.ConfigOpts) -> list[str]:
    """Return the options in the files of *conf* that have no effect, because
    their name or their section is misspelt.

    :raises ConfigError: A file cannot be read.
    """
    known = {opt.dest for opt in OPTS}
    of_partitions = {opt.dest for opt in PARTITION_OPTS}
    odd = []
    for path in files(conf):
        sections: dict[str, dict[str, Any]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (cfg.Error, cfg.ParseError, OSError) as exc:
            raise exceptions.ConfigError(
                f'{path} cannot be read: {" ".join(str(exc).split())}; '
                'correct the file') from exc
        for section, values in sections.items():
            if section == GROUP:
                for name in values:
                    option = name.replace('-', '_')
                    if option in known:
                        continue
                    odd.append(f'{name} in {path}' + (
                        f'; it belongs to a section [{PARTITION}NAME]'
                        if option in of_partitions
                        else did_you_mean(option, known)))
            elif section != 'DEFAULT' and not is_of_partition(section):
                meant = did_you_mean(section, [GROUP])
                if meant:
                    odd.append(f'section [{section}] in {path}{meant}')
    return odd


def is_of_partition(section: str) -> bool:
    """Return whether *section* is the name of a partition's section."""
    return section.lower().startswith(PARTITION)


def _partitions(conf: cfg.ConfigOpts) -> Partitions:
    """Return the partitions that have a section with options, by topic.

    :raises ConfigError: A section has an illegal name, option or value.
    """
    sections = sorted(filter(is_of_partition, conf.list_all_sections()))
    found: dict[str, Partition] = {}
    alike: dict[str, str] = {}
    for section in sections:
        name = section[len(PARTITION):]
        if TOPIC.fullmatch(name) is None:
            raise exceptions.ConfigError(
                f'[{section}]: {name!r} is not the name of a partition; '
                'give the topic of its jobs after the colon, 1 to 100 of '
                'A-Z a-z 0-9 . _ -')
        # oslo.config would merge two sections whose names differ only in case.
        other = alike.setdefault(name.lower(), section)
        if other != section:
            raise exceptions.ConfigError(
                f'[{other}] and [{section}] differ only in capital letters, '
                'so they are one section; rename one of the topics')
        conf.register_opts(PARTITION_OPTS, group=section)
        values = _values(conf, section, PARTITION_OPTS)
        if any(value is not None for value in values.values()):
            topic = values.pop('topic') or name
            _check_topic(section, topic, values, found.get(topic))
            if topic in found:
                found[topic] = dataclasses.replace(
                    found[topic],
                    other_names=(*found[topic].other_names, name))
            else:
                found[topic] = Partition(name, **values)
    if sections:
        for path in files(conf):
            _check_known(path)
    return found


def _check_topic(section: str, topic: str, values: dict[str, Any],
                 other: Partition | None) -> None:
    """Check the topic of a section, and contradictions between its options.

    :param other: Partition of another section with the same topic. None means
        that there is no such section.
    :raises ConfigError: The section cannot be used.
    """
    if TOPIC.fullmatch(topic) is None:
        raise exceptions.ConfigError(
            f'[{section}] topic = {topic!r} is not a topic; give 1 to 100 of '
            'A-Z a-z 0-9 . _ -')
    if values['preferred'] is not None and values['mode'] != 'standby':
        raise exceptions.ConfigError(
            f'[{section}] preferred = {values["preferred"]} has an effect '
            'only with mode = standby; set it, or remove preferred')
    if other is None:
        return
    for option, value in values.items():
        theirs = getattr(other, option)
        if theirs != value:
            raise exceptions.ConfigError(
                f'[{PARTITION}{other.name}] and [{section}] both describe '
                f'topic {topic!r}, but {option} is '
                f'{_shown(theirs)} in one and {_shown(value)} in the other; '
                'remove '
                'one section, or give its jobs another topic')


def _shown(value: Any) -> str:
    """Return the value of an option, without passwords."""
    return 'unset' if value is None else redaction.redact(str(value))


def _check_standby(found: Settings) -> None:
    """Check the options that partitions with ``mode = standby`` need.

    :raises ConfigError: One of these options is not set.
    """
    missing = [text for text, ok in (
        ('dispatcher = messaging', found.dispatcher == 'messaging'),
        ('a backend_url', found.backend_url),
        ('a connection', found.connection)) if not ok]
    for partition in found.partitions.values():
        if partition.standby and missing:
            raise exceptions.ConfigError(
                f'[{PARTITION}{partition.name}] mode = standby needs '
                f'{" and ".join(missing)} in [{GROUP}]; set it, or remove '
                'mode')


def _check_known(path: str) -> None:
    """Reject unknown options, and options with several different values, in
    the partition sections of a file.

    oslo.config would ignore a misspelt option. If an option has several
    values, oslo.config would use the last value and ignore the others.

    :raises ConfigError: A section has such an option.
    """
    read: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, read).parse()
    except (cfg.Error, cfg.ParseError, OSError):
        # oslo.config has just read this file. So another program is changing
        # the file at this moment.
        return
    known = [opt.dest for opt in PARTITION_OPTS]
    for section in filter(is_of_partition, read):
        for option, values in read[section].items():
            if option.replace('-', '_') not in known:
                raise exceptions.ConfigError(
                    f'[{section}] {option} = '
                    f'{redaction.redact(values[-1])} in {path}: a '
                    f'partition has no such option; it has '
                    f'{", ".join(known)}: correct the name, or remove it')
            if len(set(values)) > 1:
                raise exceptions.ConfigError(
                    f'[{section}] {option} has several values in {path}: '
                    f'{", ".join(map(_shown, values))}; keep one of them')


def value(conf: cfg.ConfigOpts, name: str) -> Any:
    """Return the value of one option, without checking the other options.

    :raises ConfigError: The value is illegal.
    """
    register_opts(conf)
    return _values(conf, GROUP, [
        opt for opt in OPTS if opt.dest == name])[name]


def reloaded(conf: cfg.ConfigOpts, name: str) -> Any:
    """Return the value of a mutable option after a reload of its file.

    None means that the new value is illegal. The error is logged, not raised,
    because it must not end a running process.
    """
    try:
        return value(conf, name)
    except exceptions.ConfigError as exc:
        LOG.error('option refused: option=%s reason=%s; the option keeps its '
                  'old value', name, exc)
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
    # A value that the operator has set does not adapt to the other times, even
    # if it equals the default.
    given = {name: values[name] for name in _TIMES if _is_set(conf, name)}
    values |= times.fit(_TIMES, given, store=store)
    times.check(values, given, store=store)
    found = Settings(**values, partitions=_partitions(conf), embedded=False)
    # The group becomes a part of the names of files and of nodes.
    check_identity(found.group, f'[{GROUP}] group')
    if found.metrics_listen:
        parse_address(found.metrics_listen, f'[{GROUP}] metrics_listen')
    if not (found.connection or found.backend_url
            or conf[GROUP].connection == NO_STORE):
        # A process that runs alone uses an embedded store. The times were
        # checked above as if there were no store, because no other process
        # depends on them.
        found = _embedded(found)
    if found.connection and len(found.group) > _GROUP_LENGTH:
        raise exceptions.ConfigError(
            f'[{GROUP}] group {found.group!r} has {len(found.group)} '
            f'characters, but a store allows {_GROUP_LENGTH}; give a shorter '
            'name')
    _check_standby(found)
    return found
