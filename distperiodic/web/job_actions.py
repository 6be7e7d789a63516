# SPDX-License-Identifier: Apache-2.0
"""The actions on jobs and their objects."""

import abc
import argparse
from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic.core import catalogue
from distperiodic.core import wording
from distperiodic.core.control import Verb
from distperiodic.operator import activity
from distperiodic.operator import admin
from distperiodic.operator import bulk
from distperiodic.operator import dead_objects
from distperiodic.operator import filters
from distperiodic.operator import members
from distperiodic.operator import queries
from distperiodic.operator.action_sources import ActionSources
from distperiodic.operator.auditing import ActionRecord
from distperiodic.operator.dead_objects import DeadFilter
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import StoredJob
from distperiodic.operator.lists import object_list
from distperiodic.web.actions import FIRST
from distperiodic.web.actions import Order
from distperiodic.web.actions import PageAction
from distperiodic.web.actions import Preview
from distperiodic.web.actions import conclude
from distperiodic.web.actions import ignore
from distperiodic.web.actions import running_schedulers
from distperiodic.web.page import Addresses
from distperiodic.web.page import NotFound
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageTable
from distperiodic.web.page import read_part
from distperiodic.web.query_filters import BadField
from distperiodic.web.query_filters import Field
from distperiodic.web.verbs import VERBS


def stored_job(request: PageRequest, name: str) -> StoredJob:
    """Return the store's data on a job.

    :raises NotFound: there is no such job.
    """
    for one in request.sources.store.jobs():
        if one.name == name:
            return one
    raise NotFound(
        f'group {request.sources.settings.group!r} has no job {name!r} in '
        'its database; the page of jobs lists those that schedulers have '
        'recorded')


def check_object(request: PageRequest, job: str, key: str) -> None:
    """Check that the store has an object.

    :raises NotFound: it has not.
    """
    try:
        if queries.object_of(request.sources.store, job,
                             catalogue.id_of(key)).claim is not None:
            return
    except exceptions.InvalidObject:
        pass
    raise NotFound(f'object {key!r} of job {job!r} is not in the store')


class _JobAction(PageAction):
    """Base class of the actions on one job or object, which schedulers answer.
    """

    names = 'job', 'object'
    needed = ('job',)
    control: Verb

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return _page_of(to, names)

    def act(self, sources: ActionSources, order: Order) -> None:
        names = order.names
        objects = [names['object']] if 'object' in names else None
        arguments = self.arguments(sources, order)
        if objects is not None:
            arguments['objects'] = objects
        schedulers = running_schedulers(sources)
        hint = sources.hint(ignore)
        with sources.record(
                self.verb.name, names['job'], **arguments) as record:
            self.change(sources, names['job'], objects, record)
            members.request_answers(
                sources.store, record, schedulers, **record.arguments)
        hint(self.control)

    def arguments(self, sources: ActionSources,
                  order: Order) -> dict[str, object]:
        """Return the arguments of the action, beside the object."""
        return {}

    @abc.abstractmethod
    def change(self, sources: ActionSources, job: str,
               objects: list[str] | None, record: ActionRecord) -> None:
        """Change the job, or only *objects* of it, in the store."""


class PauseJob(_JobAction):

    verb = VERBS['job pause']
    control = Verb.PAUSE
    reason_required = True
    fields = Field(
        'until', 'End of the pause (optional)', '',
        'A length of time from now, such as 2h, or an instant (UTC)', (),
        False, False),

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        job = stored_job(request, names['job'])
        effect = ['Its ticks are skipped until this end, or until it is '
                  'resumed. Claimed runs are finished.']
        if 'object' in names:
            check_object(request, job.name, names['object'])
            return Preview(
                f'Pause object {names["object"]} of job {job.name}?', effect)
        if job.paused_since is not None:
            effect.append(
                f'It is already paused, since '
                f'{wording.second(job.paused_since)} by {job.paused_by}: '
                f'{job.paused_why}. The new reason replaces this one.')
        return Preview(f'Pause job {job.name}?', effect)

    def arguments(self, sources: ActionSources,
                  order: Order) -> dict[str, object]:
        text = order.fields.get('until', '').strip()
        if not text:
            return {}
        try:
            return {'until': filters.until(text).after(sources.store.now())}
        except (argparse.ArgumentTypeError, exceptions.ConfigError) as exc:
            raise BadField(f'until: {exc}') from exc

    def change(self, sources: ActionSources, job: str,
               objects: list[str] | None, record: ActionRecord) -> None:
        actor, until = sources.actor, record.arguments.get('until')
        if objects is None:
            admin.pause(sources.store, job, by=actor.name, why=actor.why,
                        until=until)
        else:
            admin.pause_objects(sources.store, job, objects, by=actor.name,
                                why=actor.why, until=until)


class ResumeJob(_JobAction):

    verb = VERBS['job resume']
    control = Verb.RESUME

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        job = stored_job(request, names['job'])
        if 'object' in names:
            check_object(request, job.name, names['object'])
            return Preview(
                f'Resume object {names["object"]} of job {job.name}?',
                ['It continues with its next tick.'])
        return Preview(f'Resume job {job.name}?', [
            'It continues with its next tick.' if job.paused_since is not None
            else 'It is not paused, so nothing would change.'])

    def change(self, sources: ActionSources, job: str,
               objects: list[str] | None, record: ActionRecord) -> None:
        done = (admin.resume(sources.store, job) if objects is None else
                admin.resume_objects(sources.store, job, objects))
        if not done:
            record.outcome = 'it was not paused'


class TriggerJob(PageAction):

    verb = VERBS['job trigger']
    names = 'job', 'object'
    needed = ('job',)

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return _page_of(to, names)

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        job, store = stored_job(request, names['job']), request.sources.store
        effect = ['An object whose earlier tick has not ended is left out. '
                  'The ticks of the schedule are not affected.']
        if 'object' in names:
            check_object(request, job.name, names['object'])
            return Preview(
                f'Run object {names["object"]} of job {job.name} now?', effect)
        number = _listed(store, job.name)
        return Preview(
            f'Run {wording.plural(number, "object")} of job {job.name} now?',
            effect, number, read_part(
                request, object_list.ServedObjects(), {
                    'Object': lambda row: request.addresses.object(
                        job.name, row['Object'])}, job.name,
                given=[('limit', str(FIRST))]))

    def act(self, sources: ActionSources, order: Order) -> None:
        job, key = order.names['job'], order.names.get('object')
        store = sources.store
        schedulers = running_schedulers(sources)
        hint = sources.hint(ignore)
        with sources.record(self.verb.name, job, **(
                {} if key is None else {'object': key})) as record:
            most = order.number if key is None else None
            if most is not None:
                bulk.check_shown(most, _listed(store, job), 'object')
            result = admin.trigger(store, job, key=key, most=most)
            record.outcome = result.outcome
            if result.objects:
                members.request_answers(
                    store, record, schedulers, tick=result.tick)
        hint(Verb.TRIGGER)


def _listed(store: GroupReader, job: str) -> int:
    """Return the number of objects of a job."""
    return sum(one.objects for one in activity.listings(store, job))


class RequeueDead(PageAction):

    verb = VERBS['dead requeue']
    names = 'job', 'object', 'error'
    needed = ('job',)

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return _page_of(to, names)

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        job, store = stored_job(request, names['job']), request.sources.store
        which = _dead(names)
        number = dead_objects.number(store, which)
        effect = ['An object runs again, from its first attempt, for the tick '
                  'in which it failed, at the next sweep of a scheduler.']
        if 'error' in names:
            effect.insert(0, 'These are the objects whose error contains: '
                          + names['error'])
        titles = 'Object', 'Tick', 'Error'
        rows = [(one.object, wording.moment(one.tick),
                 wording.one_line(one.error))
                for one in dead_objects.first(store, which, FIRST)]
        return Preview(
            f'Requeue {wording.plural(number, "dead object")} of job '
            f'{job.name}?' if 'object' not in names else
            f'Requeue object {names["object"]} of job {job.name}?',
            effect, number, PageTable(
                titles, rows, {'Object': lambda row: request.addresses.object(
                    job.name, row['Object'])},
                '' if rows else 'No such object is dead now.',
                [dict(zip(map(str.lower, titles), row, strict=True))
                 for row in rows]))

    def act(self, sources: ActionSources, order: Order) -> None:
        conclude(sources, order, dead_objects.requeue(
            sources.store, _dead(order.names), sources.actor,
            shown=order.number))


def _dead(names: Mapping[str, str]) -> DeadFilter:
    return DeadFilter(
        names['job'], [names['object']] if 'object' in names else None,
        error=names.get('error'))


def _page_of(to: Addresses, names: Mapping[str, str]) -> str:
    return (to.object(names['job'], names['object']) if names.get('object')
            else to('jobs', names['job']))
