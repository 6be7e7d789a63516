# SPDX-License-Identifier: Apache-2.0
"""The threads that run catalogue methods."""

import inspect
import logging
import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from distperiodic.adapters.local import forks
from distperiodic.core import catalogue
from distperiodic.core import context
from distperiodic.core import values
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.job import Job
from distperiodic.core.job import own_schedule
from distperiodic.core.job import text_of
from distperiodic.core.ring import Arc
from distperiodic.exceptions import InvalidObject
from distperiodic.exceptions import InvalidSchedule

LOG = logging.getLogger(__name__)

# Seconds after which a thread without work ends.
_IDLE = 1.0


class CatalogueMethods:
    """Component that calls catalogue methods in the thread of its caller.

    Objects with an invalid id, or with an invalid schedule of their own, are
    left out and logged. The other objects run. If an id or a schedule cannot
    be read, or if no object is left, the whole read fails: a catalogue that
    was read only in part does not show which objects are gone.

    :param method: Returns the catalogue method of a job, by the job's name.
    :param sort: True sorts the catalogue for the scheduler, which takes
        seconds for a million objects.
    """

    def __init__(self, method: Callable[[str], Callable[..., Any] | None],
                 *, sort: bool = True):
        self._method = method
        self._sort = sort
        self._known: dict[str, catalogue.Catalogues] = {}
        self._seen: dict[str, catalogue.Catalogue] = {}
        #: The last logged text about the objects that were left out, by job.
        self._left_out: dict[str, str] = {}
        self._takes_arcs: dict[str, bool] = {}

    @forks.ends_forked
    def read(self, job: Job, tick: int,
             arcs: Sequence[Arc]) -> catalogue.Reading:
        """Call the catalogue method of *job*.

        :raises InvalidObject: The method does not return objects, or no
            object that can be used.
        :raises Exception: The method, its iterator, or the id or the schedule
            of an object raised this error.
        """
        method = self._method(job.name)
        assert method is not None
        takes_arcs = self._takes_arcs.get(job.name)
        if takes_arcs is None:
            takes_arcs = self._takes_arcs[job.name] = (
                'arcs' in inspect.signature(method).parameters)
        read_context = context.Context(
            context.RunInput(job.name, '', tick, 0, 1))
        given = (method(read_context, arcs) if takes_arcs
                 else method(read_context))
        if given is None or isinstance(given, (str, bytes)):
            raise InvalidObject(
                f'{job.objects} returned {values.shown(given, 100)}; return a '
                'list of objects, an empty one if there are none')
        objects = given if isinstance(given, (list, tuple)) else list(given)
        known = self._known.setdefault(
            job.name, catalogue.Catalogues(keep=1))
        try:
            found, own = known.of(objects), _attributes(objects)
            self._left_out.pop(job.name, None)
        except (InvalidObject, InvalidSchedule):
            objects = self._usable(job, objects)
            found, own = known.of(objects), _attributes(objects)
        if found is not self._seen.get(job.name):
            self._seen[job.name] = found
            duplicate = found.duplicate
            if duplicate is not None:
                LOG.warning(
                    'duplicate id: job=%s method=%s id=%r; the object runs '
                    'once per tick; give each object a unique id',
                    job.name, job.objects, duplicate)
        if self._sort:
            # Sorting takes long, so sort in this thread and not in the thread
            # of the flow.
            found.index()
            if job.spread:
                found.by_phase(job.schedule.period_us(tick))
        return catalogue.Reading(found, own, takes_arcs)

    def _usable(self, job: Job, objects: Sequence[Any]) -> list[Any]:
        """Return the objects that have a valid id and no invalid schedule.

        :raises Exception: As in :meth:`read`.
        """
        usable, problem, number = [], '', 0
        for obj in objects:
            # Errors of these reads end the read of the catalogue.
            key = catalogue.read_id(obj)
            try:
                catalogue.usable_id(key, obj)
                _read_attributes(obj)
            except (InvalidObject, InvalidSchedule) as exc:
                problem = problem or str(exc)
                number += 1
            else:
                usable.append(obj)
        if not usable:
            raise InvalidObject(
                f'{job.objects} returned {number} objects, and none of them '
                f'can be used; the first one: {problem}')
        problems = f'objects={number} first={problem}'
        if self._left_out.get(job.name) != problems:
            self._left_out[job.name] = problems
            LOG.error(
                'objects left out: job=%s method=%s %s; they do not run '
                'until the method returns them without this error; the other '
                'objects run', job.name, job.objects, problems)
        return usable


class ThreadReader:
    """A reader that runs catalogue methods in threads; see
    :class:`distperiodic.ports.CatalogueReader`.

    A job has at most one read in progress, so there are at most as many
    threads as jobs with objects. A thread without work ends after a
    second. The threads are daemons: a method that never returns does not
    delay other jobs or the end of the process.

    :param method: Returns the catalogue method of a job, by the job's name.
    :param answer: Called in the thread that has read the catalogue, with the
        job, the ticket, and either the reading or an exception. If no thread
        can be started, :meth:`read` itself calls it.
    :param sort: True sorts the catalogue for the scheduler, which takes
        seconds for a million objects.
    """

    def __init__(self, method: Callable[[str], Callable[..., Any] | None],
                 answer: Callable[
                     [str, int, catalogue.Reading | Exception], None], *,
                 sort: bool = True):
        self._methods = CatalogueMethods(method, sort=sort)
        self._answer = answer
        self._requests: queue.SimpleQueue[tuple[Any, ...]] = (
            queue.SimpleQueue())
        self._lock = threading.Lock()
        #: Number of threads without work. A thread that :meth:`read` has
        #: chosen for a request is no longer included.
        self._idle = 0

    def read(self, job: Job, tick: int, ticket: int,
             arcs: Sequence[Arc]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                try:
                    threading.Thread(target=self._work, daemon=True,
                                     name='distperiodic-catalogue').start()
                except RuntimeError as exc:
                    self._answer(job.name, ticket, exc)
                    return
        self._requests.put((job, tick, ticket, arcs))

    def _work(self) -> None:
        while True:
            try:
                job, tick, ticket, arcs = self._requests.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                # read() has chosen every idle thread, so a request follows.
                continue
            found: catalogue.Reading | Exception
            try:
                found = self._methods.read(job, tick, arcs)
            except BaseException as exc:
                LOG.debug('catalogue method failed: job=%s', job.name,
                          exc_info=True)
                found = _as_exception(exc)
            self._answer(job.name, ticket, found)
            # Drop the reference. Otherwise the answer would stay in memory
            # until the next request.
            del found
            with self._lock:
                self._idle += 1


def _attributes(objects: Sequence[Any]) -> dict[str, Attributes]:
    """Return the attributes of the objects that have their own, by id.

    Objects with equal attributes share one value.
    """
    own: dict[str, Attributes] = {}
    shared: dict[Attributes, Attributes] = {}
    if set(map(type, objects)) <= {str, int}:
        return own
    for obj in objects:
        one = _read_attributes(obj)
        if one is not PLAIN:
            own[catalogue.id_of(obj)] = shared.setdefault(one, one)
    return own


def _read_attributes(obj: Any) -> Attributes:
    """Return the attributes of one object.

    :raises InvalidSchedule: The object's own schedule is invalid.
    """
    schedule = own_schedule(obj)
    return PLAIN if schedule is None else Attributes(text_of(schedule))


def _as_exception(exc: BaseException) -> Exception:
    """Return *exc*, or a RuntimeError that replaces it.

    The RuntimeError replaces any *exc* that is not an Exception, or whose text
    cannot be read. It has the traceback of *exc*.
    """
    try:
        text = str(exc)
        if isinstance(exc, Exception):
            return exc
    except BaseException:
        text = 'an exception without a text'
    return RuntimeError(
        f'{type(exc).__name__}: {text}').with_traceback(exc.__traceback__)
