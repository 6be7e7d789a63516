# SPDX-License-Identifier: Apache-2.0
"""The actions that the page offers: their addresses and their rules.

The name of an action is that of the command which does the same. An action is
requested with POST. A name that stands in the path may also be in the query
string, as in ``/jobs/pause?job=..``: a browser would remove ``..`` from a
path.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

_NAME = re.compile(r'<text:(\w+)>/')


class PageVerb(NamedTuple):
    """One action, without its target."""

    #: Name of the command, which is also the name in the records.
    name: str
    #: Address, as a rule of werkzeug without the prefix of the page.
    rule: str
    #: Text of the button.
    label: str
    #: Sentence that describes the action, for the sample of the policy.
    about: str

    @property
    def policy(self) -> str:
        """Name of the rule of oslo.policy that allows the action."""
        return ':'.join(['distperiodic', *self.name.split()])

    @property
    def plain_rule(self) -> str:
        """Address without names in the path."""
        return _NAME.sub('', self.rule)

    @property
    def shown_rule(self) -> str:
        """Address for people, such as ``/jobs/{job}/pause``."""
        return _NAME.sub(r'{\1}/', self.rule)

    def parts(self, names: Mapping[str, str]) -> tuple[list[str], str]:
        """Return the parts of the path, and the query string, for a target.

        :param names: Names of the target. Empty names are left out.
        """
        left = {name: value for name, value in names.items() if value}
        found = []
        for part in self.rule.strip('/').split('/'):
            name = part.removeprefix('<text:').removesuffix('>')
            if name == part:
                found.append(part)
            elif left.get(name, '.') not in ('.', '..'):
                found.append(left.pop(name))
        return found, urlencode(left)


VERBS = {verb.name: verb for verb in (
    PageVerb('job pause', '/jobs/<text:job>/pause', 'Pause',
         'Skip the ticks of a job until it is resumed.'),
    PageVerb('job resume', '/jobs/<text:job>/resume', 'Resume',
         'Resume a job.'),
    PageVerb('job trigger', '/jobs/<text:job>/trigger', 'Run now',
         'Run a job, or one object of it, once now.'),
    PageVerb('dead requeue', '/jobs/<text:job>/requeue', 'Requeue',
         'Run objects that have failed for good again.'),
    PageVerb('task cancel', '/tasks/<text:task>/cancel', 'Cancel',
         'Cancel tasks, and roll back what they have done.'),
    PageVerb('task retry', '/tasks/<text:task>/retry', 'Retry',
         'Continue tasks that are stuck, have failed or were cancelled.'),
    PageVerb('queue resume', '/queues/<text:queue>/resume', 'Resume',
         'Resume a halted queue.'),
    PageVerb('queue halt', '/queues/<text:queue>/halt', 'Halt',
         'Halt a queue after its running task.'),
    PageVerb('member drain', '/members/<text:member>/drain', 'Drain',
         'Take members out of service.'),
    PageVerb('member undrain', '/members/<text:member>/undrain', 'Undrain',
         'Put drained members into service again.'),
    PageVerb('partition promote', '/partitions/<text:partition>/promote',
         'Make active', 'Make another worker of a partition active.'),
)}
