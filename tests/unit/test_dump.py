# SPDX-License-Identifier: Apache-2.0
"""The secrets that a dump masks."""

import pytest

from distperiodic import opts
from distperiodic.operator import dump
from tests.configured import configuration


@pytest.mark.parametrize(('url', 'passwords'), [
    ('zookeeper://me:planted@h:1,h2:2', ['planted']),
    ('zookeeper://me:pl@nted@h:1', ['pl@nted']),
    ('zookeeper://me:pl@n/ted@h:1/path', ['pl@n/ted']),
    ('zookeeper://me:p@nt,ed@h:1', ['p@nt,ed']),
    ('redis://me:first@1@h:1,me:second@2@h:2/0', ['first@1', 'second@2']),
    ('zookeeper://me:pl%40nted@h:1', ['pl%40nted', 'pl@nted'])])
def test_a_password_is_masked_outside_of_its_url(url, passwords):
    conf = configuration()
    conf.set_override('backend_url', url, opts.GROUP)

    found = dump.read([[('a', lambda: [
        f'cannot log in with {one}' for one in passwords])]], 60,
        dump.secrets_of(conf))

    assert found == {'a': ['cannot log in with ***'] * len(passwords)}
