# SPDX-License-Identifier: Apache-2.0
"""Write the dashboard of Grafana for the metrics of distperiodic.

    python tools/dashboard.py > etc/grafana/distperiodic.json

A unit test compares the file with the output of this script. Its query
variables are the data source, the label ``group`` that Prometheus adds to the
metrics of each group, and the jobs.
"""

import itertools
import json
from typing import Any

GROUP = 'group=~"$group"'
JOB = f'job=~"$job",{GROUP}'
#: Columns of the grid of Grafana, and rows of a panel.
_COLUMNS, _HIGH, _LOW = 24, 8, 4
_SOURCE = {'type': 'prometheus', 'uid': '${datasource}'}


def rate(metric: str, labels: str, by: str = '') -> str:
    """Return an expression for events per second, by these labels."""
    total = f'sum by ({by}) ' if by else 'sum'
    return (f'{total}(rate(distperiodic_{metric}{{{labels}}}'
            '[$__rate_interval]))')


def quantile(number: str, metric: str) -> str:
    """Return an expression for a quantile of a histogram by job."""
    return (f'histogram_quantile({number}, sum by (job, le) (rate('
            f'distperiodic_{metric}_bucket{{{JOB}}}[$__rate_interval])))')


def gauge(metric: str, labels: str = GROUP, by: str = '') -> str:
    """Return an expression for the sum of a gauge, by these labels."""
    total = f'sum by ({by}) ' if by else 'sum'
    return f'{total}(distperiodic_{metric}{{{labels}}})'


#: Sections: title, and panels of a type, a title, a unit, a width, and pairs
#: of an expression and a legend.
SECTIONS = (
    ('Overview', (
        ('stat', 'Failures', 'none', 4, [
            (gauge('findings', f'severity="failure",{GROUP}'), '')]),
        ('stat', 'Warnings', 'none', 4, [
            (gauge('findings', f'severity="warning",{GROUP}'), '')]),
        ('stat', 'Objects that lost a tick', 'none', 4, [
            (gauge('history_lost_objects'), '')]),
        ('stat', 'Schedulers', 'none', 4, [
            (gauge('members', f'role="scheduler",{GROUP}'), '')]),
        ('stat', 'Workers', 'none', 4, [
            (gauge('members', f'role="worker",{GROUP}'), '')]),
        ('stat', 'Age of the values', 's', 4, [
            (f'time() - min(distperiodic_facts_timestamp_seconds{{{GROUP}}})',
             '')]),
        ('timeseries', 'Findings', 'none', 12, [
            (f'{gauge("findings", by="code")} > 0', '{{code}}')]),
        ('timeseries', 'Members', 'none', 12, [
            (gauge('members', by='role'), '{{role}}'),
            (gauge('drained_members', by='role'), '{{role}}, drained')]),
    )),
    ('Jobs', (
        ('timeseries', 'Late starts of runs, 99 %', 's', 12, [
            (quantile('0.99', 'run_lateness_seconds'), '{{job}}')]),
        ('timeseries', 'Late claims, 99 %', 's', 12, [
            (f'histogram_quantile(0.99, sum by (job, path, le) (rate('
             f'distperiodic_claim_delay_seconds_bucket{{{JOB}}}'
             '[$__rate_interval])))', '{{job}} {{path}}')]),
        ('timeseries', 'Outcomes of runs', 'ops', 12, [
            (rate('runs_total', JOB, 'job, outcome'),
             '{{job}} {{outcome}}')]),
        ('timeseries', 'Ticks that do not run', 'ops', 12, [
            (rate('ticks_skipped_total', JOB, 'job, cause'),
             '{{job}} {{cause}}'),
            (rate('ticks_lost_total', JOB, 'job'), '{{job}} lost')]),
        ('timeseries', 'Age of the oldest due object', 's', 8, [
            (f'max by (job) (distperiodic_oldest_due_seconds{{{JOB}}})',
             '{{job}}')]),
        ('timeseries', 'Time since the last success', 's', 8, [
            ('time() - max by (job) '
             f'(distperiodic_last_success_timestamp_seconds{{{JOB}}})',
             '{{job}}')]),
        ('timeseries', 'Objects in the catalogues', 'none', 8, [
            (f'max by (job) (distperiodic_catalogue_objects{{{JOB}}})',
             '{{job}}'),
            (rate('catalogue_reads_total', f'result="failed",{JOB}',
                      'job'), '{{job}}: failed reads per second')]),
    )),
    ('Workers', (
        ('timeseries', 'Slots', 'none', 8, [
            (gauge('reported_slots', by='partition, state'),
             '{{partition}} {{state}}'),
            (gauge('needed_slots', by='partition'),
             '{{partition}} needed')]),
        ('timeseries', 'Runs that wait for a worker', 'none', 8, [
            (gauge('runs_waiting', by='partition'), '{{partition}}')]),
        ('timeseries', 'Slots that run handlers', 'none', 8, [
            (rate('run_duration_seconds_sum', JOB, 'job'), '{{job}}')]),
        ('timeseries', 'Duration of runs, 50 % and 99 %', 's', 8, [
            (quantile('0.5', 'run_duration_seconds'), '{{job}} 50 %'),
            (quantile('0.99', 'run_duration_seconds'), '{{job}} 99 %')]),
        ('timeseries', 'Wait for a slot, 99 %', 's', 8, [
            (quantile('0.99', 'run_waiting_seconds'), '{{job}}')]),
        ('timeseries', 'Work done by another process', 'ops', 8, [
            (rate('taken_over_total', JOB), 'taken over'),
            (rate('reclaimed_total', JOB), 'reclaimed'),
            (rate('leases_lost_total', JOB), 'leases lost'),
            (rate('fenced_total', JOB), 'results rejected')]),
    )),
    ('Tasks', (
        ('timeseries', 'Moves of tasks', 'ops', 12, [
            (rate('task_moves_total', GROUP, 'type, status'),
             '{{type}} {{status}}')]),
        ('timeseries', 'Stuck tasks and halted queues', 'none', 12, [
            (gauge('stuck_tasks'), 'stuck tasks'),
            (gauge('halted_queues'), 'halted queues')]),
    )),
    ('Servers and ring', (
        ('timeseries', 'Servers that answer', 'none', 8, [
            (f'min(distperiodic_store_up{{{GROUP}}})', 'store'),
            (f'min(distperiodic_coordination_up{{{GROUP}}})',
             'coordination service'),
            (f'min(distperiodic_facts_complete{{{GROUP}}})',
             'everything was read')]),
        ('timeseries', 'Time to read the store', 's', 8, [
            (f'max(distperiodic_facts_duration_seconds{{{GROUP}}})', '')]),
        ('timeseries', 'Changes of the group', 'ops', 8, [
            (rate('member_changes_total', GROUP, 'role, change'),
             '{{role}} {{change}}')]),
        ('timeseries', 'Processes that are not healthy', 'none', 8, [
            (f'{gauge("services", by="role")} - '
             f'{gauge("services_healthy", by="role")}', '{{role}}')]),
        ('timeseries', 'Dropped messages', 'ops', 8, [
            (rate('rejected_messages_total', GROUP), '')]),
        ('timeseries', 'Dropped events', 'ops', 8, [
            (rate('events_dropped_total', GROUP), '')]),
    )),
)


def panels() -> list[dict[str, Any]]:
    """Return the panels of all sections, in rows of the grid."""
    found: list[dict[str, Any]] = []
    ids = itertools.count(1)
    top = 0
    for title, some in SECTIONS:
        found.append({
            'id': next(ids), 'type': 'row', 'title': title, 'panels': [],
            'collapsed': False,
            'gridPos': {'x': 0, 'y': top, 'w': _COLUMNS, 'h': 1}})
        left, top = 0, top + 1
        for kind, name, unit, width, queries in some:
            high = _LOW if kind == 'stat' else _HIGH
            found.append({
                'id': next(ids), 'type': kind, 'title': name,
                'datasource': _SOURCE,
                'gridPos': {'x': left, 'y': top, 'w': width, 'h': high},
                'fieldConfig': {
                    'defaults': {'unit': unit, 'min': 0}, 'overrides': []},
                'options': {},
                'targets': [{
                    'refId': letter, 'datasource': _SOURCE, 'expr': query,
                    'legendFormat': legend or name}
                    for letter, (query, legend) in zip(
                        'ABCD', queries, strict=False)]})
            left += width
            if left == _COLUMNS:
                left, top = 0, top + high
    return found


def _labels(name: str, query: str) -> dict[str, Any]:
    return {
        'name': name, 'label': name, 'type': 'query', 'datasource': _SOURCE,
        'query': query, 'refresh': 2, 'sort': 1,
        'multi': True, 'includeAll': True, 'allValue': '.*',
        'current': {'text': 'All', 'value': '$__all'}}


def dashboard() -> dict[str, Any]:
    return {
        'uid': 'distperiodic', 'title': 'distperiodic',
        'description': 'Periodic jobs and tasks of groups of distperiodic',
        'tags': ['distperiodic'], 'schemaVersion': 39, 'editable': True,
        'refresh': '30s', 'time': {'from': 'now-3h', 'to': 'now'},
        'annotations': {'list': []},
        'templating': {'list': [
            {'name': 'datasource', 'label': 'data source',
             'type': 'datasource', 'query': 'prometheus'},
            _labels('group', 'label_values(distperiodic_findings, group)'),
            _labels('job', 'label_values(distperiodic_job_period_seconds'
                           f'{{{GROUP}}}, job)')]},
        'panels': panels()}


if __name__ == '__main__':
    print(json.dumps(dashboard(), indent=2))
