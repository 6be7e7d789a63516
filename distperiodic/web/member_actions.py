# SPDX-License-Identifier: Apache-2.0
"""The actions on the processes of the group."""

import abc
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.core import wording
from distperiodic.core.control import Verb
from distperiodic.operator import drain_effects
from distperiodic.operator import members
from distperiodic.operator.action_sources import ActionSources
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.members import MemberAdmin
from distperiodic.web.actions import Order
from distperiodic.web.actions import PageAction
from distperiodic.web.actions import Preview
from distperiodic.web.actions import ignore
from distperiodic.web.page import Addresses
from distperiodic.web.page import NotFound
from distperiodic.web.page import PageRequest
from distperiodic.web.query_filters import Incomplete
from distperiodic.web.verbs import VERBS


class _MemberAction(PageAction):
    """Base class of the actions on one member, or on those of one host."""

    names = 'member', 'partition', 'host'
    alone = ('host',)
    control: Verb

    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        return to('members')

    def chosen(self, rows: Sequence[MemberRow], names: Mapping[str, str]
               ) -> list[MemberRow]:
        """Return the members that *names* selects.

        A member has a name, and a partition if it is a worker.

        :raises NotFound: there is no such member.
        :raises Incomplete: *names* selects none.
        """
        if 'host' in names:
            found = [one for one in rows if one.is_on(names['host'])]
        elif 'member' not in names:
            raise Incomplete('no member is named; give member, or host')
        else:
            key = names.get('partition', ''), names['member']
            found = [one for one in rows if (one.part, one.name) == key]
        if not found:
            raise NotFound('no member of this group has reported as '
                           + ', '.join(f'{name} {value!r}'
                                       for name, value in names.items()))
        return found

    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        rows = members.members(request.sources.store)
        found = self.chosen(rows, names)
        what = (found[0].label if len(found) == 1 and 'host' not in names
                else f'{wording.plural(len(found), "member")} of host '
                f'{names["host"]}')
        return Preview(f'{self.verb.label} {what}?', [
            *self.effect(found),
            *(['This includes members that start on the host later for the '
               'first time.'] if 'host' in names else []),
            *([f'The members: {", ".join(one.label for one in found)}.']
              if len(found) > 1 else [])], len(found), warnings=self.warnings(
                  rows, found, request.sources.settings.session_timeout))

    @abc.abstractmethod
    def effect(self, found: Sequence[MemberRow]) -> list[str]:
        """Return sentences about the consequences."""

    def warnings(self, rows: Sequence[MemberRow], found: Sequence[MemberRow],
                 within: float) -> list[str]:
        """Return clauses about consequences that may not be wanted.

        :param within: Maximum age of a member's report, in seconds.
        """
        return []

    def act(self, sources: ActionSources, order: Order) -> None:
        names = order.names
        admin = sources.members
        assert isinstance(admin, MemberAdmin)
        found = self.chosen(admin.members(), names)
        hint = sources.hint(ignore)
        target = names.get('member') or f'host {names["host"]}'
        hosts = [names['host']] if 'host' in names else []
        action = admin.order(self.control, found, target, hosts)
        labels = sorted(one.label for one in found)
        admin.conclude(action, f'ordered for {wording.listed(labels)}')
        hint(self.control, [(one.part, one.name) for one in found], action)


class DrainMembers(_MemberAction):

    verb = VERBS['member drain']
    control = Verb.DRAIN

    def effect(self, found: Sequence[MemberRow]) -> list[str]:
        return ['A drained scheduler makes no new claims, and a drained '
                'worker receives no new work, even after a restart. Claimed '
                'work is finished.']

    def warnings(self, rows: Sequence[MemberRow], found: Sequence[MemberRow],
                 within: float) -> list[str]:
        return drain_effects.left_without(rows, found, within)


class UndrainMembers(_MemberAction):

    verb = VERBS['member undrain']
    control = Verb.UNDRAIN

    def effect(self, found: Sequence[MemberRow]) -> list[str]:
        return ['It is put into service again.' if len(found) == 1 else
                'They are put into service again.']
