# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` that concern the store.

As in checks.py, each check is a function, and the operator sees its docstring.
No check changes a row.
"""

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.cmd.check import check
from distperiodic.cmd.doctor_facts import DoctorFacts
from distperiodic.cmd.findings import CheckResult
from distperiodic.cmd.findings import fail
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn

#: Difference between the clocks of this host and the store, in seconds, that
#: causes a warning. Member jobs follow this host's clock, and all other jobs
#: follow the store's clock.
_SKEW = 1.0
#: Number of rows of the history, of its exceptions, or of the failures, that
#: causes a warning.
_MANY = 1_000_000
_DAY = 86400 * 1_000_000


@check('store')
def store_reachable(facts: DoctorFacts) -> CheckResult:
    """The database accepts the login, and its tables match this release."""
    store = facts.connected
    return ok(f'{store.dialect.name}, group {facts.settings.group}')


@check('store')
def store_schema(facts: DoctorFacts) -> CheckResult:
    """No column, key or index of the tables is missing. The keys decide which
    claim wins.
    """
    from distperiodic.operator import store_probe
    missing = store_probe.missing(facts.store)
    if missing:
        return fail(
            f'missing: {configured.listed(missing)}',
            'stop all schedulers and workers; restore the missing parts, or '
            'drop the distperiodic tables and run: distperiodic db sync')
    return ok('all columns, keys and indexes exist')


@check('store')
def store_rights(facts: DoctorFacts) -> CheckResult:
    """This database user may read and write the rows, and the database stores
    new rows. The user needs no other rights.
    """
    from distperiodic.operator import store_probe
    refused = store_probe.refused(facts.store)
    if refused:
        names = configured.listed([what for what, _ in refused])
        return fail(
            f'refused: {names} ({refused[0][1]})',
            'GRANT SELECT, INSERT, UPDATE, DELETE on the distperiodic_* '
            'tables to this user, and on PostgreSQL also USAGE on their '
            'sequences; check that the database is not read-only')
    problem, _, remedy = store_probe.write_problem(
        facts.store).partition('; ')
    if problem:
        return fail(f'cannot write: {problem}', remedy)
    return ok('may select, insert, update and delete')


@check('store')
def store_clock(facts: DoctorFacts) -> CheckResult:
    """This host's clock agrees with the store's clock, which determines ticks
    and leases.
    """
    from distperiodic.operator import store_probe
    skew = store_probe.skew(facts.store, SystemClock())
    off = abs(skew.seconds)
    side = 'ahead of' if skew.seconds > 0 else 'behind'
    if off - skew.within > _SKEW:
        return warn(f'{off:.2f} s {side} the store\'s clock',
                    'run chrony or ntpd on both hosts; until then, member '
                    'jobs start early or late by this difference; all other '
                    'jobs follow the store\'s clock')
    return ok(f'within {max(off, 0.01):.2f} s of the store\'s clock')


@check('store')
def store_file(facts: DoctorFacts) -> CheckResult:
    """The SQLite file is on a disk of this host, and its readers do not block
    writers.
    """
    from distperiodic.operator import store_probe
    store = facts.store
    file = store_probe.file_of(store)
    if file is None:
        return skip(f'the store is {store.dialect.name}, not SQLite')
    kind = store_probe.network_disk(file)
    if kind is not None:
        return fail(
            f'{file} is on {kind}, whose locks do not exclude other '
            'hosts',
            'move it to a disk of this host, or use PostgreSQL or MySQL for '
            'more than one host')
    problem = store_probe.journal_problem(store)
    if problem:
        return warn(problem,
                    'check that the directory is writable and that no '
                    'program keeps the file in another mode')
    return ok(f'{file}, journal_mode WAL')


@check('store')
def store_engine(facts: DoctorFacts) -> CheckResult:
    """Transactions can be rolled back, and see the commits of other
    transactions.
    """
    from distperiodic.operator import store_probe
    store = facts.store
    if not store.dialect.locks_rows:
        return skip('SQLite has one writer at a time')
    engine = store.dialect.storage_engine
    if wrong := store_probe.engines(store):
        names = configured.listed(
            [f'{name}: {other}' for name, other in sorted(wrong.items())])
        return fail(f'not {engine}, so nothing is rolled back: {names}',
                    f'ALTER TABLE NAME ENGINE={engine} for each of them')
    level = store_probe.isolation(store)
    if level != 'READ COMMITTED':
        return fail(f'transactions run at {level}',
                    'configure the server and its proxies so that they keep '
                    'the requested level, READ COMMITTED')
    return ok(', '.join(filter(None, (level, engine))))


@check('store')
def store_size(facts: DoctorFacts) -> CheckResult:
    """Few rows of the history, of its exceptions and of failures are
    obsolete, because schedulers delete old ones.
    """
    from distperiodic.operator import store_probe
    sizes = store_probe.sizes(facts.store)
    rows = ', '.join(
        f'{name.removeprefix("distperiodic_")} {number:,}'
        f'{"+" * (number >= _MANY)}' for name, number in sizes.items())
    oldest = store_probe.oldest_tick(facts.store)
    age = 0 if oldest is None else (facts.store.now() - oldest) // _DAY
    found = f'rows: {rows}; {age} days of history'
    kept = facts.settings.history_retention
    ticks, exceptions, failures = (
        sizes[f'distperiodic_{name}'] >= _MANY
        for name in ('history', 'exception', 'failure'))
    if (ticks or exceptions or failures) and not kept:
        return warn(
            f'{found}; history_retention is 0, so schedulers delete none',
            'set history_retention to a number of days; or run from time to '
            'time: distperiodic db prune --history DAYS --dead DAYS')
    if (ticks or exceptions) and age > kept + 1:
        return warn(
            f'{found}, but history_retention is {kept:g} days',
            'start a scheduler, which deletes the older rows; if one runs, '
            'look in its log for errors of the store')
    if failures:
        return warn(
            f'{found}; schedulers keep the failures of {kept:g} days, and '
            'those of all objects that are still dead',
            'remove the causes: distperiodic dead list; then delete the '
            'records: distperiodic db prune --dead DAYS')
    return ok(found)


@check('store')
def store_jobs(facts: DoctorFacts) -> CheckResult:
    """--tasks has every job that is in the store. A renamed or removed job
    leaves open claims behind.
    """
    if facts.tasks is None:
        return skip('--tasks is not given')
    unknown = sorted({job.name for job in facts.store.jobs()}
                     - set(facts.tasks.jobs))
    if unknown:
        return warn(
            f'not in --tasks: {configured.listed(unknown)}',
            'if a job was renamed: restore its old name with name=...; if it '
            'was removed: distperiodic db prune --claims DAYS; if it belongs '
            'to another service: give each service its own group')
    return ok('--tasks has all jobs of the store')
