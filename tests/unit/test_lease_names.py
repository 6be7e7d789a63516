# SPDX-License-Identifier: Apache-2.0
"""Names of leases."""

import os

from distperiodic.service import lease_names


def test_no_name_of_a_lease_is_given_out_twice():
    names = [lease_names.new_lease() for _ in range(1000)]

    assert len(set(names)) == 1000
    assert {len(name) for name in names} == {20}


def test_a_forked_child_gives_out_other_names():
    lease_names.new_lease()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, '\n'.join(
            lease_names.new_lease() for _ in range(300)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        theirs = set(answer.read().split())
    os.waitpid(child, 0)

    assert len(theirs) == 300
    assert not theirs & {lease_names.new_lease() for _ in range(300)}
