# SPDX-License-Identifier: Apache-2.0
"""The first page: the health of the group, five numbers, and what to do."""

from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator import group_numbers
from distperiodic.operator.group_numbers import GroupNumbers
from distperiodic.operator.group_status import GroupStatus
from distperiodic.operator.lists import job_list
from distperiodic.web.list_pages import job_links
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageTable
from distperiodic.web.page import read_list

# Maximum number of jobs on the first page.
_JOBS = 50


class Figure(NamedTuple):
    """A number, its name, and the section that explains it."""

    name: str
    #: Empty means unknown.
    text: str
    detail: str
    section: str
    #: True if the number needs attention.
    alarming: bool


def overview(request: PageRequest) -> Page:
    """Return the first page.

    If the store or the coordination service cannot be read, the page says what
    is unknown.
    """
    sources = request.sources
    if not sources.settings.connection:
        # Without a store, only the coordination service knows the group.
        sources.check_backend()
    facts = sources.facts()
    status = GroupStatus(facts)
    numbers = group_numbers.of_facts(facts)
    table: PageTable | None = None
    names: list[str] = []
    if facts.stored:
        try:
            numbers = group_numbers.with_store(
                numbers, sources.store, facts.now)
            names = [one.name for one in sources.store.jobs()]
            if len(names) <= _JOBS:
                table = read_list(
                    request, job_list.Jobs(), job_links(request))
        except exceptions.DistperiodicError:
            # The store was slow, or has just gone: the findings say so.
            table = None
    titles, rows = cells.table(
        status.columns(False), status.rows(False), False)
    data = [dict(zip(map(cells.key, titles), row, strict=True))
            for row in cells.known(rows)]
    return Page('Overview', 'overview.html', {
        'status': status, 'figures': _figures(numbers), 'table': table,
        'jobs': len(names), 'about': {
            one.about: request.addresses.about(one.about, names)
            for one in status.findings},
        'at': wording.second(facts.now)}, {
            'group': facts.group, 'at': wording.moment(facts.now),
            'result': status.result, 'status': status.headline,
            'numbers': numbers._asdict(),
            'findings': [row for row in data if row['role'] == 'finding'],
            'rows': data}, '')


def _figures(numbers: GroupNumbers) -> list[Figure]:
    def text(number: int | None) -> str:
        return '' if number is None else f'{number:,}'
    agree, views = numbers.views_agree, numbers.views
    return [
        Figure('Members', text(numbers.members),
               '' if not numbers.drained else f'{numbers.drained} drained',
               'members', numbers.members == 0),
        Figure('Late objects', text(numbers.late),
               'waiting longer than a period', 'jobs', bool(numbers.late)),
        Figure('Running', text(numbers.running), 'runs granted to workers',
               'jobs', False),
        Figure('Failed in the last hour', text(numbers.failed),
               'runs that failed for good', 'jobs', bool(numbers.failed)),
        Figure('Ring agreement',
               '' if not views else f'{agree} of {views}',
               'schedulers that see the same group', 'ring',
               agree != views)]
