# SPDX-License-Identifier: Apache-2.0
"""The coordination service of the simulated cluster."""

import functools

from distperiodic.core.job_set import JobRings
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import View
from distperiodic.core.member import parse_entry
from distperiodic.core.member import resolve_entries
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring
from tests.oracle.facts import Entry
from tests.simulation.world import SECOND

SCHEDULERS = 'group'
WORKERS = 'group.workers.default'

# Minimum delay of a view, in seconds.
_LEAST_LAG = 0.002


@functools.lru_cache(maxsize=512)
def _ring(points):
    return Ring(dict(points))


class Ensemble:
    """The coordination service: its entries, sessions and watchers.

    :param session: session timeout in seconds.
    :param lag: maximum delay of a view, in seconds.
    :param job_rings: whether views contain the rings of single jobs.
    """

    def __init__(self, world, session, lag, *, job_rings=True):
        self.world = world
        self._job_rings = job_rings
        self.session = session
        self.lag = lag
        self.away = False
        self._entries = {SCHEDULERS: {}, WORKERS: {}}
        self._watchers = {SCHEDULERS: [], WORKERS: []}
        self._version = 0
        self._missed = set()
        #: Each change of the true ring of the schedulers.
        self.rings = []
        #: The sets of jobs that schedulers have published, by their digests.
        self.job_sets = {}

    def watch(self, process, group):
        self._watchers[group].append(process)
        self._show(process, group)

    def join(self, process, group, member):
        """Add *member* as the entry of *process*. Retry until the entry
        exists.
        """
        if process.leaving:
            return
        if process.cut is not None or self.away or any(
                one.identity == member.identity and not one.same_process(
                    member) for one in self._entries[group].values()):
            process.later(0.3, self.join, process, group, member,
                          stream='membership')
            return
        self._entries[group][process.name] = member
        process.member = member
        process.sure_until = float('inf')
        self._changed(group)

    def publish(self, process, group):
        """Replace the entry of *process* by its current member, if it has an
        entry in the group. Retry until the service can be reached.
        """
        entry = self._entries[group].get(process.name)
        if entry is None or entry == process.member:
            return
        if self.away or process.cut is not None:
            process.later(0.3, self.publish, process, group,
                          stream='membership')
            return
        self._entries[group][process.name] = process.member
        self._changed(group)

    def publish_jobs(self, jobs):
        """Publish the jobs of a scheduler, and return their digest."""
        published = JobSet.of(jobs.values())
        self.job_sets[published.digest] = published
        return published.digest

    def entry(self, process, group):
        """Return the entry of *process* in the group. None means that the
        process has no entry.
        """
        return self._entries[group].get(process.name)

    def unheard(self, process, group):
        """Start the session timeout of *process*, which has just been killed,
        frozen or cut off, or which could not remove its entry.
        """
        world = self.world
        process.sure_until = min(
            process.sure_until,
            world.t + int(self.session / 2 * SECOND))
        world.after(self.session * (0.8 + 0.2 * world.random.random()),
                    self._expire, process, group, world.t)

    def heard(self, process, group):
        """Record that *process* can be reached again. Its session may still
        exist.
        """
        process.heard = self.world.t
        process.later(0.1 * self.world.random.random(), self._answered,
                      process, group, stream='membership')

    def _answered(self, process, group):
        if process.name in self._entries[group] and process.cut is None:
            process.sure_until = float('inf')

    def _expire(self, process, group, since):
        if self.away:
            self.world.after(self.session, self._expire, process, group,
                             since)
            return
        # A process that stops keeps its session until its runs have ended.
        heard = (process.alive and not process.frozen
                 and process.cut is None)
        member = self._entries[group].get(process.name)
        if member is None or heard or (
                process.alive and process.heard > since):
            return
        self.world.tell('EXPIRED %s', process.name)
        del self._entries[group][process.name]
        self._changed(group)
        self._rejoin(process, group, member)

    def _rejoin(self, process, group, member):
        if process.alive:
            # The process learns of its expired session when it can be reached
            # again.
            process.later(0.05 + self.world.random.random(), self.join,
                          process, group, member.next_term(True),
                          stream='membership')

    def leave(self, process, group):
        """Remove the entry of *process*. If the service cannot be reached, the
        entry stays until the session expires.
        """
        if self.away or process.cut is not None:
            self.unheard(process, group)
        elif self._entries[group].pop(process.name, None) is not None:
            self._changed(group)

    def go_away(self):
        """Make the service unavailable. Then no process can be certain of its
        session for long.
        """
        self.away = True
        for process in self._processes():
            process.sure_until = min(
                process.sure_until,
                self.world.t + int(self.session / 2 * SECOND))

    def _processes(self):
        return [process for process in self.world.processes.values()
                if process.alive]

    def heal(self):
        self.away = False
        for process in self._processes():
            if not process.frozen and process.cut is None:
                self.heard(process, process.group)
        for group in sorted(self._missed):
            self._changed(group)
        self._missed.clear()

    @property
    def longest(self):
        """Maximum delay of a view that nothing holds up, in microseconds."""
        return int((_LEAST_LAG + self.lag) * SECOND)

    def _changed(self, group):
        self._version += 1
        if group == SCHEDULERS:
            self.rings.append((self.world.now, tuple(
                Entry(name, one.identity, one.points)
                for name, one in self._entries[group].items())))
        watchers = self._watchers[group] = [
            one for one in self._watchers[group] if one.alive]
        for process in watchers:
            self._show(process, group)

    def _show(self, process, group):
        if self.away:
            self._missed.add(group)
            return
        entries = tuple(
            one.entry for one in self._entries[group].values())
        process.later(
            _LEAST_LAG + self.lag * self.world.random.random(), self._seen,
            process, group, self._version, entries, self.world.now,
            stream='membership')

    def _seen(self, process, group, version, entries, since):
        if process.cut is not None:
            process.later(0.3, self._seen, process, group, version, entries,
                          since, stream='membership')
            return
        known = process.views.get(group)
        if known is not None and known.version > version:
            return
        me = process.member
        if group == process.group:
            process.seen.append((since, self.world.now))
            process.stands(any(one.same_process(me) for one in map(
                parse_entry, entries)))
        members, _ = resolve_entries(entries, me)
        ring = _ring(tuple(ring_members(members).items()))
        rings = None
        if group == SCHEDULERS and self._job_rings:
            digests = {one.identity: one.jobs for one in members if one.points}
            rings = (JobRings(ring, digests, self.job_sets) if known is None
                     else known.rings.changed_to(
                         ring, digests, self.job_sets))
        process.views[group] = View(
            group, members, ring, version, process.clock.monotonic(),
            me if me in members else None, float('inf'), rings)
        process.viewed(process.views[group])
