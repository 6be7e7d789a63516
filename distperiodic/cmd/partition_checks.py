# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` that concern partitions.

As in checks.py, each check is a function, and the operator sees its docstring.
No check changes a row.
"""

import contextlib

from distperiodic.cmd import configured
from distperiodic.cmd.case import Case
from distperiodic.cmd.check import check
from distperiodic.cmd.findings import Finding
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn


@check('partitions', offline=True)
def partition_jobs(case: Case) -> Finding:
    """Each section of a partition has the topic of a job. Otherwise the
    options of the section have no effect.
    """
    from distperiodic import opts
    partitions = case.settings.partitions
    if not partitions:
        return ok('the configuration has no options of partitions')
    if case.tasks is None:
        return skip('--tasks is not given')
    topics = {job.topic for job in (
        *case.tasks.jobs.values(), *case.tasks.commands.values())}
    unused = [f'[{opts.PARTITION}{one.name}]'
              for topic, one in sorted(partitions.items())
              if topic not in topics]
    if unused:
        return warn(
            f'no job of --tasks has the topic of {configured.listed(unused)}; '
            f'the jobs have topics {configured.listed(sorted(topics))}',
            'correct the name of the section, or remove it, unless it belongs '
            'to another service that reads the file')
    return ok(f'{configured.plural(len(partitions), "partition")} with '
              'options')


@check('partitions', offline=True)
def partition_handlers(case: Case) -> Finding:
    """Each class that the option handler of a partition names can be loaded,
    and has a job or a command of the partition.
    """
    from distperiodic import loading
    named = [topic for topic, one in sorted(case.settings.partitions.items())
             if one.handler is not None]
    if not named:
        return ok('no partition has the option handler')
    for topic in named:
        loading.load_handler(case.conf, case.settings, topic)
    return ok(f'loaded for {configured.listed(named)}')


@check('partitions')
def partition_active(case: Case) -> Finding:
    """Each partition with mode = standby has an active worker, and another
    worker that can take over.
    """
    from distperiodic.operator.partitions import PartitionQueries
    named = sorted(topic for topic, one in case.settings.partitions.items()
                   if one.standby)
    if not named:
        return ok('no partition has mode = standby')
    assert case.store  # If the store does not answer, the check is skipped.
    within = case.settings.session_timeout
    with contextlib.closing(PartitionQueries(
            case.settings.connection,
            namespace=case.settings.group)) as queries:
        found = {one.name: one for one in queries.partitions()}
    odd, fine = [], []
    for topic in named:
        one = found.get(topic)
        present = one.present(within) if one is not None else []
        spare = [worker for worker in present
                 if one is not None and worker.process != one.active]
        if one is None or len(spare) == len(present):
            odd.append(f'{topic} has no active worker')
        elif not spare:
            odd.append(f'{topic} has no standby worker')
        else:
            fine.append(f'{topic}: {configured.identity(one.active)}')
    if odd:
        return warn('; '.join(odd),
                    'start distperiodic worker --partition NAME on two hosts; '
                    'see distperiodic partition show NAME')
    return ok(f'active: {configured.listed(fine)}')
