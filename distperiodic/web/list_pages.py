# SPDX-License-Identifier: Apache-2.0
"""The pages that are lists: the same lists as those of the command line."""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from urllib.parse import urlencode

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring
from distperiodic.core.workflow import Status
from distperiodic.operator import bulk_tasks
from distperiodic.operator.lists import event_list
from distperiodic.operator.lists import job_list
from distperiodic.operator.lists import member_list
from distperiodic.operator.lists import partition_list
from distperiodic.operator.lists import pool_list
from distperiodic.operator.lists import queue_list
from distperiodic.operator.lists import ring_list
from distperiodic.operator.lists import task_list
from distperiodic.operator.live_group import Group
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import role
from distperiodic.web.page import Button
from distperiodic.web.page import Link
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageTable
from distperiodic.web.page import read_list


class MemberCard(NamedTuple):
    """A process on the page of members."""

    name: str
    role: str
    state: str
    drained: bool
    #: Slots in use and all slots. None means unknown.
    busy: int
    slots: int
    queued: int
    #: Share of the ring, and its multiple of a fair share. None means that the
    #: process is not on the ring, or that the ring is unknown.
    share: float | None
    of_fair: float | None
    buttons: Sequence[Button]


def job_links(request: PageRequest) -> Mapping[str, Link]:
    """Return the links of a list of jobs."""
    return {'Job': lambda row: request.addresses('jobs', row['Job'])}


def jobs(request: PageRequest) -> Page:
    """Return the page of the jobs."""
    return _page('Jobs', 'jobs', read_list(
        request, job_list.Jobs(), job_links(request)))


def tasks(request: PageRequest) -> Page:
    """Return the page of the tasks."""
    table = read_list(request, task_list.Tasks(), {
        'Id': lambda row: request.addresses('tasks', row['Id'])})
    limit = int(request.value('limit') or 100)
    following = ''
    if table.data and len(table.rows) == limit:
        following = '?' + urlencode([
            pair for pair in request.given
            if pair[0] != 'after'] + [('after', table.data[-1]['id'])])
    page = _page('Tasks', 'tasks', table, following=following)
    page.buttons = _of_filter(request) if table.rows else []
    return page


def _of_filter(request: PageRequest) -> list[Button]:
    """Return the buttons for all tasks that the filter selects."""
    names = {name: request.value(name) for name in ('type', 'queue')}
    names['status'] = (Status.STUCK.value if request.value('stuck')
                       else request.value('status'))
    names = {name: value for name, value in names.items() if value}
    status = names.get('status')
    return [
        *(request.button('task retry', 'Retry all that match', **names)
          if status in bulk_tasks.RETRIABLE else []),
        *(request.button('task cancel', 'Cancel all that match', **names)
          if names and status in (None, *bulk_tasks.CANCELLABLE) else [])]


def queues(request: PageRequest) -> Page:
    """Return the page of the ordered queues."""
    table = read_list(request, queue_list.Queues(), {
        'Queue': lambda row: request.addresses('tasks')
        + '?' + urlencode({'queue': row['Queue']}),
        'Head': lambda row: request.addresses('tasks', row['Head']),
        'By task': lambda row: request.addresses('tasks', row['By task'])})
    table.actions = lambda row: request.button(
        'queue resume' if row['State'] == 'halted' else 'queue halt',
        queue=row['Queue'])
    return _page('Queues', 'queues', table)


def pools(request: PageRequest) -> Page:
    """Return the page of the pools of task dispensers."""
    return _page('Pools', 'pools', read_list(
        request, pool_list.TaskPools(), {}))


def partitions(request: PageRequest) -> Page:
    """Return the page of the partitions."""
    table = read_list(request, partition_list.Partitions(), {})
    timeout = request.sources.settings.session_timeout
    spare = {one.name: sorted({
        worker.identity for worker in one.present(timeout)
        if worker.process != one.active}) for one in table.found}
    table.actions = lambda row: [
        button for worker in spare[row['Partition']]
        for button in request.button(
            'partition promote', f'Make {worker} active',
            partition=row['Partition'], worker=worker)]
    return _page('Partitions', 'partitions', table)


def events(request: PageRequest) -> Page:
    """Return the page of the actions of operators."""
    return _page('Events', 'events', read_list(
        request, event_list.Actions(), {}))


def members(request: PageRequest) -> Page:
    """Return the page of the processes of the group, by host."""
    table = read_list(request, member_list.Members(), {})
    group, why = None, ''
    if request.sources.settings.backend_url:
        try:
            group = request.sources.group
        except exceptions.DistperiodicError as exc:
            why = f'The shares are unknown: {wording.one_line(exc)}.'
    by_host: dict[str, list[MemberCard]] = collections.defaultdict(list)
    timeout = request.sources.settings.session_timeout
    for row in table.found:
        host = row.host or row.name.rpartition(':')[0] or 'unknown host'
        by_host[host].append(_card(row, group, timeout)._replace(
            buttons=request.button(
                'member undrain' if row.drained else 'member drain',
                member=row.name, partition=row.part)))
    return _page('Members', 'members', table, template='members.html',
                 hosts=[(host, by_host[host], _of_host(request, host, [
                     row for row in table.found if row.host == host]))
                     for host in sorted(by_host)], why=why,
                 most=max((card.share or 0 for some in by_host.values()
                           for card in some), default=0))


def _of_host(request: PageRequest, host: str,
             rows: Sequence[MemberRow]) -> list[Button]:
    """Return the buttons for all members of a host, if there are several.

    :param rows: Members that have reported this host.
    """
    if len(rows) < 2:
        return []
    drained = all(row.drained for row in rows)
    return request.button(
        'member undrain' if drained else 'member drain',
        'Undrain this host' if drained else 'Drain this host', host=host)


def _card(row: MemberRow, group: Group | None, timeout: float) -> MemberCard:
    pools = row.facts.pools
    share = of_fair = None
    if group is not None and not row.part and row.name in group.ring.members:
        share, of_fair = group.ring.share(row.name), group.of_fair(row.name)
    return MemberCard(
        row.name, role(row), member_list.state(row, timeout), row.drained,
        sum(pool.busy for pool in pools), sum(pool.size for pool in pools),
        sum(pool.queued for pool in pools), share, of_fair, ())


def ring(request: PageRequest) -> Page:
    """Return the page of the ring, with the share of each member."""
    table = read_list(request, ring_list.RingShares(), {})
    shares: Sequence[tuple[str, float, float]] = ()
    # With the filter for arcs, the rows are no members.
    if not request.value('arcs'):
        points = Ring(ring_members(table.found))
        shares = [(one.identity, points.share(one.identity),
                   one.points / len(points)) for one in table.found]
    return _page('Ring', 'ring', table, template='ring.html', shares=shares,
                 most=max((max(share, fair) for _, share, fair in shares),
                          default=1))


def _page(title: str, section: str, table: PageTable,
          template: str = 'list.html', **values: Any) -> Page:
    return Page(title, template, {'table': table, **values}, table.data,
                section)
