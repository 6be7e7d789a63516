# SPDX-License-Identifier: Apache-2.0
"""The actions on ordered queues and on partitions."""

from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.core.task import Queue
from distperiodic.operator import partitions
from distperiodic.operator import task_queries
from distperiodic.operator.action_sources import ActionSources
from distperiodic.web.actions import Order
from distperiodic.web.actions import PageAction
from distperiodic.web.actions import Preview
from distperiodic.web.actions import ignore
from distperiodic.web.page import Addresses
from distperiodic.web.page import NotFound
from distperiodic.web.page import PageRequest
from distperiodic.web.verbs import VERBS


class _QueueAction(PageAction):
    """Base class of the actions on one queue."""

    names = needed = ('queue',)

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return to('queues')

    def queue(self, request: PageRequest, names: Mapping[str, str]) -> Queue:
        """Return the queue.

        :raises UnknownTask: there is no such queue.
        """
        [found] = task_queries.queues(request.sources.store, names['queue'])
        return found


class ResumeQueue(_QueueAction):

    verb = VERBS['queue resume']

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        queue = self.queue(request, names)
        return Preview(f'Resume queue {queue.name}?', [
            'It is not halted, so nothing would change.'
            if queue.halted_at is None else
            f'It is halted: {queue.halted_why}. Its next task runs.'])

    def act(self, sources: ActionSources, order: Order) -> None:
        with sources.record(self.verb.name, order.names['queue']) as record:
            if not sources.client.resume_queue(order.names['queue']):
                record.outcome = 'it was not halted'


class HaltQueue(_QueueAction):

    verb = VERBS['queue halt']

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        queue = self.queue(request, names)
        return Preview(f'Halt queue {queue.name}?', [
            'Its running task is finished, and no other task starts until the '
            'queue is resumed.' if queue.halted_at is None else
            'It is already halted, so nothing would change.'])

    def act(self, sources: ActionSources, order: Order) -> None:
        actor = sources.actor
        with sources.record(self.verb.name, order.names['queue']) as record:
            if not sources.client.halt_queue(
                    order.names['queue'], actor.why, actor.name):
                record.outcome = 'it was already halted'


class PromoteWorker(PageAction):

    verb = VERBS['partition promote']
    names = needed = 'partition', 'worker'

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return to('partitions')

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        sources = request.sources
        store = sources.store
        try:
            found = partitions.partition(
                store, sources.settings.topic_of(names['partition']))
        except exceptions.ConfigError as exc:
            raise NotFound(str(exc)) from exc
        active, worker = wording.identity(found.active), names['worker']
        return Preview(
            f'Make {worker} the active worker of partition {found.name}?', [
                'No worker is active now.' if not active else
                f'{active} is active: it finishes its runs and releases the '
                'partition.' if found.left > 0 else
                f'The lease of {active} has expired, so {worker} takes over.'])

    def act(self, sources: ActionSources, order: Order) -> None:
        name, worker = order.names['partition'], order.names['worker']
        settings = sources.check_store()
        hint = sources.hint(ignore)
        with sources.record(self.verb.name, name, member=worker) as record:
            before = partitions.promote(
                sources.store, settings.topic_of(name), worker,
                by=sources.actor.name, within=settings.session_timeout)
            record.outcome = partitions.effect_of(before, worker)
        hint(self.verb.name)
