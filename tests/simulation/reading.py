# SPDX-License-Identifier: Apache-2.0
"""Catalogues, their changes, and their readers."""

from distperiodic.adapters.local.reader import CatalogueMethods
from distperiodic.core import catalogue
from distperiodic.core import ring
from distperiodic.core.attributes import Attributes
from distperiodic.core.job import Scope
from distperiodic.core.job import text_of
from distperiodic.flow import events
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.oracle.facts import Listed
from tests.oracle.facts import Reading
from tests.oracle.facts import Span


class Catalogues:
    """The catalogues of all jobs.

    :param rules: schedules that objects of the job ``own`` may have.
    """

    def __init__(self, world, jobs, objects, rules):
        self._world = world
        self._rules = rules
        #: Changes of the listing, by (job, object).
        self.listings = {}
        #: Readings of each job.
        self.readings = {name: [] for name in jobs}
        self._objects = {}
        for name, job in jobs.items():
            if job.scope is Scope.GROUP:
                keys = [name]
            else:
                keys = [f'{name}-{n}' for n in range(objects)]
            self._objects[name] = {}
            for key in keys:
                self._list(name, key, -FOREVER)

    def _list(self, job, key, at):
        rule = None
        if job == 'own':
            rule = self._world.random.choice(self._rules)
        self._objects[job][key] = rule
        self.listings.setdefault((job, key), []).append(
            Listed(at, True, rule))

    def come(self, job, key):
        """List an object from now on. It may have been listed before."""
        if key not in self._objects[job]:
            self._list(job, key, self._world.now)

    def go(self, job, key):
        if self._objects[job].pop(key, self) is not self:
            self.listings[job, key].append(
                Listed(self._world.now, False))

    def turn(self, job, key):
        """Change the schedule of an object, if the object has its own."""
        rule = self._objects[job].get(key)
        if rule is not None and len(self._rules) > 1:
            rule = self._world.random.choice(
                [one for one in self._rules if one != rule])
            self._objects[job][key] = rule
            self.listings[job, key].append(
                Listed(self._world.now, True, rule))

    def objects(self, job):
        return list(self._objects[job])

    def read(self, job, arcs, identity, instant):
        """Return the answer of the catalogue method of *job*.

        The answer contains the objects and their own attributes, and says
        whether they are only the objects in the arcs.
        """
        objects = list(self._objects[job])
        partial = job == 'parts'
        if partial:
            objects = [key for key in objects if any(
                low <= ring.position_of(key) <= high
                for low, high in arcs)]
        self.readings[job].append(Reading(
            self._world.now, identity, instant, frozenset(objects)))
        own = {key: Attributes(text_of(rule))
               for key, rule in self._objects[job].items()
               if rule is not None}
        return objects, own, partial


class _Unreadable:
    """An object that was read in a session that has ended."""

    @property
    def id(self):
        raise OSError('the session has ended')


class Reader:
    """A reader whose catalogue methods return after some time.

    See :class:`distperiodic.ports.CatalogueReader`.

    :param fails: share of the reads that fail. The read after a failed read
        succeeds.
    """

    def __init__(self, process, catalogues, fails):
        self._process = process
        self._catalogues = catalogues
        #: The share of the reads that fail.
        self.fails = fails
        #: Jobs whose last read failed. Their next read succeeds.
        self._failed = set()
        self._known = {}
        self.hangs = False
        self._hung_since = 0
        self._waiting = []
        #: Intervals in which a catalogue method did not return.
        self.unread = []

    def read(self, job, tick, ticket, arcs):
        random = self._process.world.random
        seconds = 0.001 + 0.02 * random.random()
        if random.random() < 0.02:
            seconds += 2 * random.random()
            self._unread(seconds)
        self._process.later(seconds, self._answer, job.name, ticket, arcs,
                            tick, stream=f'catalogue {job.name}')

    def _unread(self, seconds):
        now = self._process.world.now
        self.unread.append(Span(
            now, now + int(seconds * SECOND), 'slow'))

    def hang(self):
        if not self.hangs:
            self.hangs = True
            self._hung_since = self._process.world.now

    def go_on(self):
        if self.hangs:
            self.hangs = False
            self.unread.append(Span(
                self._hung_since, self._process.world.now, 'hung'))
            waiting, self._waiting = self._waiting, []
            for asked in waiting:
                self._process.happen(f'catalogue {asked[0]}', self._answer,
                                     asked)

    def _unreadable(self, job, arcs, instant):
        """Return the answer of the product to a catalogue in which the id of
        an object cannot be read.
        """
        objects = [*self._catalogues.objects(job)[1:], _Unreadable()]
        methods = CatalogueMethods(lambda name: lambda context: objects)
        try:
            return methods.read(self._process.jobs[job], instant, arcs)
        except Exception as error:
            return error

    def _answer(self, job, ticket, arcs, instant):
        if self.hangs:
            self._waiting.append((job, ticket, arcs, instant))
            return
        known = self._known.setdefault(job, catalogue.Catalogues(keep=1))
        if (self.fails and job not in self._failed
                and self._process.world.random.random() < self.fails):
            self._failed.add(job)
            # The product reads the catalogue again after a second.
            self._unread(2.0)
            reading = (
                OSError('it was there a moment ago')
                if self._process.world.now % 2
                else self._unreadable(job, arcs, instant))
        else:
            self._failed.discard(job)
            objects, own, partial = self._catalogues.read(
                job, arcs, self._process.identity, instant)
            reading = catalogue.Reading(known.of(objects), own, partial)
        self._process.look(
            self._process.flow.handle,
            events.CatalogueRead(job, ticket, reading))
