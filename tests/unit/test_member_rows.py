# SPDX-License-Identifier: Apache-2.0
"""The host of a member, as its name and its report give it."""

import pytest

from distperiodic.operator.member_rows import MemberRow


@pytest.mark.parametrize(('name', 'reported', 'hosts'), [
    ('vm:0', 'vm', ['vm']), ('vm:0', None, ['vm']), ('vm:0', 7, ['vm']),
    ('vm', None, ['vm']), ('api-1', 'vm', ['api-1', 'vm']),
    ('vm2:0', 'vm2', ['vm2']), ('vm:0', 'vm2', ['vm', 'vm2'])])
def test_a_member_is_on_the_host_of_its_report_and_of_its_name(
        name, reported, hosts):
    row = MemberRow('', name, 'p~1', 0, {'host': reported}, False, None, '',
                    '', None)

    assert [one for one in ('api-1', 'vm', 'vm2') if row.is_on(one)
            ] == hosts
