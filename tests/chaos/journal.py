# SPDX-License-Identifier: Apache-2.0
"""The journal of claims, tasks and partitions, written by the database itself.

For each row that is inserted into the table of claims or of tasks, or changed
in it, a trigger adds a row to the journal, in the same transaction. Another
trigger does this for each change of a partition's active worker, fence or
chosen worker. So the journal contains exactly the committed changes, even if
the process that committed a transaction did not learn the outcome.
"""

import sqlalchemy as sa

from distperiodic.adapters.sql.column_types import SKIPPED_CODES
from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.adapters.sql.tables import KIND
from distperiodic.core.claim import State

_WATCH = '''
CREATE TABLE chaos_journal (
    n bigserial PRIMARY KEY, at bigint NOT NULL, job int NOT NULL,
    object text NOT NULL, tick bigint NOT NULL, settled bigint NOT NULL,
    state smallint NOT NULL, fence bigint NOT NULL, attempt int NOT NULL,
    lease text NOT NULL, worker text, skipped_by smallint,
    by xid NOT NULL DEFAULT pg_current_xact_id()::xid);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_journal (at, job, object, tick, settled, state, fence,
                               attempt, lease, worker, skipped_by)
    VALUES (extract(epoch FROM clock_timestamp()) * 1000000, NEW.job,
            NEW.object, NEW.tick, NEW.settled, NEW.state, NEW.fence,
            NEW.attempt, NEW.lease, NEW.worker, NEW.skipped_by);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE ON distperiodic_claim
    FOR EACH ROW EXECUTE FUNCTION chaos_note();
CREATE TABLE chaos_task (
    n bigserial PRIMARY KEY, task text NOT NULL, status smallint NOT NULL,
    step int NOT NULL, back smallint NOT NULL, cursor int NOT NULL,
    queue text, created bigint NOT NULL, cancelling boolean NOT NULL,
    parameters text NOT NULL, due bigint,
    by xid NOT NULL DEFAULT pg_current_xact_id()::xid);
CREATE FUNCTION chaos_note_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_task (task, status, step, back, cursor, queue, created,
                            cancelling, parameters, due)
    VALUES (NEW.id, NEW.status, NEW.step, NEW.back, NEW.cursor, NEW.queue,
            NEW.created, NEW.cancelled_by IS NOT NULL, NEW.parameters,
            NEW.due);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_task AFTER INSERT OR UPDATE ON distperiodic_task
    FOR EACH ROW EXECUTE FUNCTION chaos_note_task();
CREATE TABLE chaos_partition (
    n bigserial PRIMARY KEY, name text NOT NULL, worker text,
    fence bigint NOT NULL, promoted text,
    by xid NOT NULL DEFAULT pg_current_xact_id()::xid);
CREATE FUNCTION chaos_note_partition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_partition (name, worker, fence, promoted)
    VALUES (NEW.name, NEW.worker, NEW.fence, NEW.promoted);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_partition AFTER UPDATE ON distperiodic_partition
    FOR EACH ROW WHEN (
        (OLD.worker, OLD.fence, OLD.promoted) IS DISTINCT FROM
        (NEW.worker, NEW.fence, NEW.promoted))
    EXECUTE FUNCTION chaos_note_partition();
CREATE TABLE chaos_effect (
    object text NOT NULL, tick bigint NOT NULL, fence bigint NOT NULL);
'''


def connect(url):
    """Return an engine for the tests, which bypasses all proxies."""
    return sa.create_engine(sa.make_url(url).set(
        drivername='postgresql+psycopg2'), pool_pre_ping=True)


def keep(url):
    """Create the tables and the triggers of the journal."""
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(sa.text(_WATCH))
    engine.dispose()


def read(connection, since=0, kind=KIND):
    """Return all rows with numbers above *since*, each with the name of its
    job.

    The rows of one claim are in the order of its transitions. ``at`` is the
    time of a transition. Other transactions see the transition from the time
    ``committed``.

    :param kind: kind of the jobs: periodic jobs or commands.
    """
    return connection.execute(sa.text(
        'SELECT n, at, name AS job, object, tick, settled, state, fence, '
        'attempt, lease, worker, skipped_by, '
        'CAST(extract(epoch FROM pg_xact_commit_timestamp(by)) * 1000000 '
        'AS bigint) AS committed FROM chaos_journal '
        'JOIN distperiodic_job ON distperiodic_job.id = job '
        'WHERE n > :since AND kind = :kind ORDER BY n'), {
            'since': since, 'kind': kind}).all()


def tasks(connection):
    """Return each committed version of each task."""
    return connection.execute(sa.text(
        'SELECT chaos_task.*, '
        'CAST(extract(epoch FROM pg_xact_commit_timestamp(by)) * 1000000 '
        'AS bigint) AS committed FROM chaos_task ORDER BY n')).all()


def partition(connection, name):
    """Return each change of a partition's active worker, of the partition's
    fence, and of the member that an operator has chosen.
    """
    return connection.execute(sa.text(
        'SELECT n, worker, fence, promoted, '
        'CAST(extract(epoch FROM pg_xact_commit_timestamp(by)) * 1000000 '
        'AS bigint) AS committed FROM chaos_partition '
        'WHERE name = :name ORDER BY n'), {'name': name}).all()


def effects(connection):
    """Return (object, tick, fence) of each effect that was committed together
    with the end of its run.
    """
    return connection.execute(sa.text(
        'SELECT object, tick, fence FROM chaos_effect')).all()


STATES = {code: state.value for state, code in STATE_CODES.items()}
SKIPPED_BY = {code: by.value for by, code in SKIPPED_CODES.items()}
# If a handler has committed the end of its run, the run is done, even before
# the store has counted it.
STATES[STATE_CODES[State.COMMITTED]] = State.DONE.value
