# SPDX-License-Identifier: Apache-2.0
"""An operator drains a member, pauses a job and promotes a worker.

The first group has three schedulers, which check hosts. The operator drains
one of these schedulers. The second group has one scheduler and two workers.
The workers serve one partition, and only one of them is active. The operator
pauses the job of this group, and promotes the other worker. The program prints
each ``distperiodic`` command with its answer, and checks that the members
obey. At the end the program prints the record of all actions.

The program needs a broker and a coordination service. One Redis server is
enough for both::

    TRANSPORT_URL=redis://localhost BACKEND_URL=redis://localhost \
        python run.py
"""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import distperiodic

HERE = pathlib.Path(__file__).parent
SECONDS = 3
HOSTS = 12
# If a run begins this number of seconds after its tick, a member other than
# the owner may have claimed it. The number is half of the period of the job.
LATE = 0.5
# Seconds after which the program gives up.
LIMIT = 60
CONFIG = """\
[distperiodic]
group = {group}
backend_url = {backend_url}
connection = sqlite:///{place}/claims.sqlite
state_path = {place}/state
session_timeout = 6
"""
# Each scheduler of the first group runs the objects that it claims, so the
# journal shows which scheduler claimed each object.
LOCAL = """\
dispatcher = local
"""
MESSAGING = """\
dispatcher = messaging
[DEFAULT]
transport_url = {transport_url}
[partition:licence]
mode = standby
"""


class Checks(distperiodic.PeriodicTasks):

    def hosts(self, context):
        return [f'host-{number}' for number in range(HOSTS)]

    @distperiodic.periodic_task(spacing=1, objects='hosts')
    def check(self, context, host):
        write('begin', host, context)


class Licensed(distperiodic.PeriodicTasks):

    @distperiodic.periodic_task(spacing=0.5, scope='group', topic='licence')
    def use_licence(self, context):
        write('begin', 'licence', context)
        time.sleep(0.05)
        write('end', 'licence', context)


def write(event, object_, context):
    """Write one line into the journal, in one write."""
    journal = os.open(os.environ['JOURNAL'], os.O_WRONLY | os.O_APPEND)
    os.write(journal, f'{event} {os.environ["MEMBER"]} {object_} '
                      f'{context.tick.timestamp()} {time.time()}\n'.encode())
    os.close(journal)


class Event(NamedTuple):
    """A line of the journal."""

    what: str
    member: str
    object: str
    tick: float
    at: float


class Cluster:
    """Processes of one group, and the journal of its handler."""

    def __init__(self, place, group, tasks, config):
        self.tasks = tasks
        self.journal = place / f'{group}.journal'
        self.journal.touch()
        self.config = place / f'{group}.conf'
        self.config.write_text((CONFIG + config).format(
            place=place, group=group, **{
                name.lower(): os.environ[name]
                for name in ('BACKEND_URL', 'TRANSPORT_URL')}))
        self.processes = []

    def command(self, *words):
        return [sys.executable, '-m', 'distperiodic.cmd.shell', *words,
                '--config-file', self.config]

    def start(self, member, *words):
        """Start a process that has the name *member* in its group."""
        own = self.config.with_name(f'{member}.conf')
        own.write_text(f'[distperiodic]\nmember_id = {member}\n')
        self.processes.append(subprocess.Popen(
            [*self.command(*words), '--config-file', own,
             '--tasks', f'run:{self.tasks}'], cwd=HERE,
            env=os.environ | {'JOURNAL': str(self.journal), 'MEMBER': member},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True))

    def ask(self, *words, **options):
        """Run a distperiodic command, and return its output."""
        return subprocess.run(
            self.command(*words), cwd=HERE, check=True, text=True,
            stdout=subprocess.PIPE, **options).stdout

    def order(self, *words):
        """Run a distperiodic command, and print it with its output."""
        print('$ distperiodic', *words)
        print(self.ask(*words), end='')

    def rows(self, *words):
        return json.loads(self.ask(*words, '-f', 'json',
                                   stderr=subprocess.DEVNULL))

    def events(self, since=0.0):
        """Return the events of runs after *since*."""
        lines = [line.split() for line
                 in self.journal.read_text().splitlines()]
        events = [Event(*line[:3], *map(float, line[3:])) for line in lines]
        return [event for event in events if event.at > since]

    def close(self):
        for process in self.processes:
            # Kill the launcher and the process that it launched.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(condition, what):
    """Wait until a condition is true, and return its value.

    Give up after LIMIT seconds.
    """
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f'WRONG: {what} within {LIMIT} s')
        time.sleep(0.1)
    return found


def owners(events, since):
    """Return the members that owned each host in the ticks after *since*."""
    found = collections.defaultdict(set)
    for event in events:
        if event.tick > since and event.at - event.tick < LATE:
            found[event.object].add(event.member)
    return found


def settled(events, since):
    """Return a dict from each host to its owner.

    Return None if a host had no owner or several owners, or if one of the
    three schedulers owned no host.
    """
    found = owners(events, since).items()
    owner = {host: member for host, members in found for member in members}
    if (len(owner) == HOSTS == sum(len(members) for _, members in found)
            and len(set(owner.values())) == 3):
        return owner
    return None


def drain(cluster):
    """Drain a scheduler, undrain it, and return the faults that were found."""
    member = 'scheduler-1'
    before = until(
        lambda: settled(cluster.events(), time.time() - SECONDS),
        'the three schedulers did not divide the hosts among them')
    cluster.order('member', 'drain', member, '--reason', 'new kernel')
    answered = time.time()
    time.sleep(SECONDS)
    until(lambda: len(owners(cluster.events(), answered)) == HOSTS,
          'some hosts were not checked in time after the drain')
    wrong = drain_faults(cluster.events(), member, before, answered)
    cluster.order('member', 'undrain', member)
    undrained = time.time()
    until(lambda: member in {event.member
                             for event in cluster.events(undrained)},
          f'{member} checked no host after it was undrained')
    return wrong


def drain_faults(events, member, before, answered):
    """Return the faults of a drained scheduler and of the others.

    Only ticks after the answer count: the scheduler may have claimed an
    earlier tick before its answer.

    :param member: Name of the drained scheduler.
    :param before: Owner of each host before the drain.
    :param answered: Time at which the scheduler had answered.
    """
    wrong = [f'{member} claimed {event.object} {event.tick - answered:.1f} s '
             'after it was drained' for event in events
             if event.member == member and event.tick > answered]
    after = owners(events, answered)
    for host, owner in before.items():
        if owner == member and len(after[host]) > 1:
            wrong.append(f'{host} moved more than once: {after[host]}')
        if owner != member and after[host] != {owner}:
            wrong.append(f'{host} moved from {owner} to {after[host]}, but '
                         f'only {member} was drained')
    return wrong


def pause(cluster):
    """Pause and resume the job, and return the faults that were found."""
    cluster.order('job', 'pause', 'use_licence', '--reason', 'licence ends')
    # The scheduler has answered, so it skips the ticks of the job. But a run
    # that was claimed before may still begin.
    time.sleep(2.0)
    paused = time.time()
    time.sleep(SECONDS)
    runs = len(cluster.events(paused))
    cluster.order('job', 'resume', 'use_licence')
    resumed = time.time()
    until(lambda: cluster.events(resumed), 'the resumed job did not run')
    return [f'{runs} events of the paused job'] * bool(runs)


def promote(cluster):
    """Make the standby worker active, and return the faults that were found.
    """
    active = cluster.events()[-1].member
    [other] = {'worker-1', 'worker-2'} - {active}

    def state():
        return {one['worker']: one['state'] for one in cluster.rows(
            'partition', 'show', 'licence')}
    until(lambda: state().get(other) == 'standby', 'no worker stood by')
    since = cluster.events()[-1].at
    cluster.order('partition', 'promote', 'licence', other)
    until(lambda: other in {event.member for event in cluster.events(since)},
          f'{other} did not become active')
    time.sleep(SECONDS)
    wrong = promote_faults(cluster.events(since), active, other)
    if state() != {active: 'standby', other: 'active'}:
        wrong.append(f'the states are {state()}, but {other} was promoted')
    return wrong


def promote_faults(events, active, other):
    """Return the faults of two workers after *other* was promoted."""
    first = next(number for number, event in enumerate(events)
                 if event.member == other)
    wrong = [f'{active} used the licence after {other} was active'
             for event in events[first:] if event.member == active]
    if first and events[first - 1].what == 'begin':
        wrong.append(f'{other} used the licence before {active} had ended')
    return wrong


def main():
    for name in ('TRANSPORT_URL', 'BACKEND_URL'):
        if not os.environ.get(name):
            print(f'{name} is not set; set it to the URL of a server, such '
                  'as redis://localhost', file=sys.stderr)
            return 2
    place = pathlib.Path(tempfile.mkdtemp(prefix='control-'))
    hosts = Cluster(place, 'control-hosts', 'Checks', LOCAL)
    licence = Cluster(place, 'control-licence', 'Licensed', MESSAGING)
    try:
        hosts.ask('db', 'sync')
        for number in range(1, 4):
            hosts.start(f'scheduler-{number}', 'scheduler')
        licence.start('scheduler', 'scheduler')
        for number in range(1, 3):
            licence.start(f'worker-{number}', 'worker', '--partition',
                          'licence')
        wrong = drain(hosts)
        until(licence.events, 'the licence was not used')
        wrong += pause(licence) + promote(licence)
        records = [record for cluster in (hosts, licence)
                   for record in reversed(cluster.rows('events'))]
    finally:
        hosts.close()
        licence.close()
    print(f'{len(records)} actions are on record:')
    for record in records:
        print(f'  {record["what"]} {record["target"]}: {record["outcome"]}')
    return account(wrong)


def account(wrong):
    """Print the faults. Return 0 if there are none."""
    if wrong:
        print('WRONG:', *wrong, sep='\n  ')
        return 1
    print('the drained scheduler claimed nothing after its answer; its hosts '
          'moved once, and no other host moved;\nthe paused job did not run; '
          'the promoted worker became active when the other had finished')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
