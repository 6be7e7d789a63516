# SPDX-License-Identifier: Apache-2.0
"""Table of all metrics.

``doc/source/reference/metrics.rst`` describes the metrics for operators. No
label has an unlimited number of values: never the id of an object or a task,
the name of a queue, or the text of an error.
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from distperiodic.core.claim import SkippedBy
from distperiodic.core.telemetry import ClaimPath
from distperiodic.core.telemetry import MemberRole
from distperiodic.core.telemetry import RunOutcome


class MetricKind(enum.StrEnum):
    """Type of a metric, in the words of Prometheus."""

    COUNTER = 'counter'
    GAUGE = 'gauge'
    HISTOGRAM = 'histogram'


class MetricSource(enum.StrEnum):
    """Origin of the values of a metric."""

    #: The events and the status of the processes, at ``metrics_listen`` or in
    #: the registry of the program.
    PROCESS = 'process'
    #: The tables and the coordination service, which ``distperiodic metrics``
    #: reads. No process is needed.
    STORE = 'store'


class MergedBy(enum.StrEnum):
    """Value of a gauge for several processes together."""

    SUM = 'sum'
    MAX = 'max'


class Metric(NamedTuple):
    """Name and meaning of a metric."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    #: Sentence for the exposition.
    help: str
    source: MetricSource = MetricSource.PROCESS
    merged_by: MergedBy = MergedBy.SUM


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind

TICKS_DUE = Metric(
    'distperiodic_ticks_due_total', _COUNTER, ('job',),
    'Ticks of the job that have come due, once in each scheduler.')
CLAIMS = Metric(
    'distperiodic_claims_total', _COUNTER, ('job', 'path'),
    'Objects that schedulers have claimed.')
CLAIM_DELAY = Metric(
    'distperiodic_claim_delay_seconds', _HISTOGRAM, ('job', 'path'),
    'Time from the instant at which objects were due to their claim.')
DISPATCHED = Metric(
    'distperiodic_dispatched_total', _COUNTER, ('job',),
    'Objects that were sent to workers.')
RUN_WAITING = Metric(
    'distperiodic_run_waiting_seconds', _HISTOGRAM, ('job',),
    'Time for which claimed objects have waited for the grant of their run.')
RUNS_STARTED = Metric(
    'distperiodic_runs_started_total', _COUNTER, ('job',),
    'Runs that were granted.')
RUN_LATENESS = Metric(
    'distperiodic_run_lateness_seconds', _HISTOGRAM, ('job',),
    'Time from the instant at which objects were due to the start of their '
    'first runs.')
RUN_DURATION = Metric(
    'distperiodic_run_duration_seconds', _HISTOGRAM, ('job',),
    'Duration of runs.')
RUNS = Metric(
    'distperiodic_runs_total', _COUNTER, ('job', 'outcome'),
    'Recorded outcomes of runs: done, dead or retried.')
FENCED = Metric(
    'distperiodic_fenced_total', _COUNTER, ('job',),
    'Results that were rejected because the lease of their runs had ended.')
LEASES_LOST = Metric(
    'distperiodic_leases_lost_total', _COUNTER, ('job',),
    'Runs whose lease another process has taken over.')
TAKEN_OVER = Metric(
    'distperiodic_taken_over_total', _COUNTER, ('job',),
    'Claims whose lease was taken over, because it had expired or its holder '
    'was gone; includes retries that are due.')
RECLAIMED = Metric(
    'distperiodic_reclaimed_total', _COUNTER, ('job',),
    'Claims that schedulers have reclaimed from workers.')
TICKS_SKIPPED = Metric(
    'distperiodic_ticks_skipped_total', _COUNTER, ('job', 'cause'),
    'Ticks, of each object, that do not run: misfire, overlap or pause.')
TICKS_LOST = Metric(
    'distperiodic_ticks_lost_total', _COUNTER, ('job',),
    'Ticks, of each object, that no process claimed in time although '
    'schedulers served the job.')
CATALOGUE_READS = Metric(
    'distperiodic_catalogue_reads_total', _COUNTER, ('job', 'result'),
    'Reads of the catalogue of a job: read or failed.')
CATALOGUE_OBJECTS = Metric(
    'distperiodic_catalogue_objects', _GAUGE, ('job',),
    'Objects in the last reading of the catalogue of a job.',
    merged_by=MergedBy.MAX)
TASKS = Metric(
    'distperiodic_task_moves_total', _COUNTER, ('type', 'status'),
    'Moves of tasks at the end of their steps, by the new status.')
QUEUES_HALTED = Metric(
    'distperiodic_queues_halted_total', _COUNTER, (),
    'Ordered queues that were halted by a failed task.')
REJECTED_MESSAGES = Metric(
    'distperiodic_rejected_messages_total', _COUNTER, (),
    'Messages that were dropped.')
MEMBER_CHANGES = Metric(
    'distperiodic_member_changes_total', _COUNTER, ('role', 'change'),
    'Members that have joined or left, once in each process that saw it.')
EVENTS_DROPPED = Metric(
    'distperiodic_events_dropped_total', _COUNTER, (),
    'Events that were dropped because a subscriber was too slow.')
SLOTS = Metric(
    'distperiodic_slots', _GAUGE, ('partition', 'state'),
    'Threads for handlers: busy, free, or replaced because they hang.')
OBJECTS_QUEUED = Metric(
    'distperiodic_objects_queued', _GAUGE, ('partition',),
    'Objects that wait in processes for a slot.')
MEMBERS_SEEN = Metric(
    'distperiodic_members_seen', _GAUGE, ('role',),
    'Members of the groups, as the process sees them.',
    merged_by=MergedBy.MAX)
SERVICES = Metric(
    'distperiodic_services', _GAUGE, ('role',),
    'Started services.')
SERVICES_HEALTHY = Metric(
    'distperiodic_services_healthy', _GAUGE, ('role',),
    'Started services that are certain of their membership, reach their '
    'store, and are not stalled.')


def _of_store(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, _GAUGE, labels, text, MetricSource.STORE)


FINDINGS = _of_store(
    'distperiodic_findings', ('code', 'severity'),
    'Findings of distperiodic status. All codes are present.')
STORE_UP = _of_store(
    'distperiodic_store_up', (), '1 if the store could be read, otherwise 0.')
COORDINATION_UP = _of_store(
    'distperiodic_coordination_up', (),
    '1 if the coordination service could be read, otherwise 0.')
MEMBERS = _of_store(
    'distperiodic_members', ('role',),
    'Live members of the group, including drained ones.')
DRAINED_MEMBERS = _of_store(
    'distperiodic_drained_members', ('role',),
    'Live members that operators have drained.')
REPORTED_SLOTS = _of_store(
    'distperiodic_reported_slots', ('partition', 'state'),
    'Threads for handlers in the last reports of the live members: busy, '
    'free, or replaced because they hang.')
NEEDED_SLOTS = _of_store(
    'distperiodic_needed_slots', ('partition',),
    'Average number of slots that would run all that was due in the last ten '
    'minutes.')
RUNS_WAITING = _of_store(
    'distperiodic_runs_waiting', ('partition',),
    'Claimed objects and ready steps of tasks that wait for a worker.')
OLDEST_DUE = _of_store(
    'distperiodic_oldest_due_seconds', ('job',),
    'Time for which the oldest due object, or ready step, has waited for its '
    'start.')
JOB_PERIOD = _of_store(
    'distperiodic_job_period_seconds', ('job',),
    'Time between two ticks of the job.')
JOB_PAUSED = _of_store(
    'distperiodic_job_paused', ('job',),
    '1 if an operator has paused the job, otherwise 0.')
LAST_SUCCESS = _of_store(
    'distperiodic_last_success_timestamp_seconds', ('job',),
    'Newest tick of the last day at which an object of the job succeeded.')
LOST_OBJECTS = _of_store(
    'distperiodic_history_lost_objects', ('job',),
    'Objects that lost a tick in the last ten minutes.')
STUCK_TASKS = _of_store(
    'distperiodic_stuck_tasks', (), 'Tasks that need an operator.')
HALTED_QUEUES = _of_store(
    'distperiodic_halted_queues', (), 'Ordered queues that are halted.')
FACTS_COMPLETE = _of_store(
    'distperiodic_facts_complete', (),
    '1 if everything could be read, 0 if values are missing.')
FACTS_TIMESTAMP = _of_store(
    'distperiodic_facts_timestamp_seconds', (),
    'When the values were read.')
FACTS_DURATION = _of_store(
    'distperiodic_facts_duration_seconds', (),
    'Time that the reading of the values took.')

#: All metrics, in the order of the documentation.
METRICS = (
    TICKS_DUE, CLAIMS, CLAIM_DELAY, DISPATCHED, RUN_WAITING, RUNS_STARTED,
    RUN_LATENESS, RUN_DURATION, RUNS, FENCED, LEASES_LOST, TAKEN_OVER,
    RECLAIMED, TICKS_SKIPPED, TICKS_LOST, CATALOGUE_READS, CATALOGUE_OBJECTS,
    TASKS, QUEUES_HALTED, REJECTED_MESSAGES, MEMBER_CHANGES, EVENTS_DROPPED,
    SLOTS, OBJECTS_QUEUED, MEMBERS_SEEN, SERVICES, SERVICES_HEALTHY,
    FINDINGS, STORE_UP, COORDINATION_UP, MEMBERS, DRAINED_MEMBERS,
    REPORTED_SLOTS, NEEDED_SLOTS, RUNS_WAITING, OLDEST_DUE, JOB_PERIOD,
    JOB_PAUSED,
    LAST_SUCCESS, LOST_OBJECTS, STUCK_TASKS, HALTED_QUEUES, FACTS_COMPLETE,
    FACTS_TIMESTAMP, FACTS_DURATION)
BY_NAME = {metric.name: metric for metric in METRICS}

#: All values of those labels of counters that have a closed list of values.
LABEL_VALUES: Mapping[str, tuple[str, ...]] = {
    'path': tuple(path.value for path in ClaimPath),
    'outcome': tuple(outcome.value for outcome in RunOutcome),
    'cause': tuple(cause.value for cause in SkippedBy
                   if cause is not SkippedBy.LOST),
    'result': ('read', 'failed'),
    'role': tuple(role.value for role in MemberRole),
    'change': ('joined', 'left')}
