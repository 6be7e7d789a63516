# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` that concern partitions.

As in checks.py, each check is a function, and the operator sees its docstring.
No check changes a row.
"""


from distperiodic import loading
from distperiodic import opts
from distperiodic.cmd import configured
from distperiodic.cmd.check import check
from distperiodic.cmd.doctor_facts import DoctorFacts
from distperiodic.cmd.findings import CheckResult
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn


@check('partitions', offline=True)
def partition_jobs(facts: DoctorFacts) -> CheckResult:
    """Each section of a partition has the topic of a job. Otherwise the
    options of the section have no effect.
    """
    partitions = facts.settings.partitions
    if not partitions:
        return ok('the configuration has no options of partitions')
    if facts.tasks is None:
        return skip('--tasks is not given')
    topics = {job.topic for job in (
        *facts.tasks.jobs.values(), *facts.tasks.commands.values())}
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
def partition_handlers(facts: DoctorFacts) -> CheckResult:
    """Each class that the option handler of a partition names can be loaded,
    and has a job or a command of the partition.
    """
    named = [topic for topic, one in sorted(facts.settings.partitions.items())
             if one.handler is not None]
    if not named:
        return ok('no partition has the option handler')
    for topic in named:
        loading.load_handler(facts.conf, facts.settings, topic)
    return ok(f'loaded for {configured.listed(named)}')
