# SPDX-License-Identifier: Apache-2.0
"""The rules of oslo.policy for the actions of the page."""

import logging
from collections.abc import Mapping
from typing import Any

from oslo_policy import policy

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.web.identity import Identity
from distperiodic.web.verbs import VERBS
from distperiodic.web.verbs import PageVerb

LOG = logging.getLogger(__name__)

#: Rule to which the rules of all actions refer by default.
OPERATOR = 'distperiodic:operator'



def list_rules() -> list[policy.RuleDefault]:
    """Return the rules, for oslopolicy-sample-generator."""
    return [policy.RuleDefault(
        OPERATOR, 'role:admin',
        'Decides on all actions whose own rule is not set. REMOTE_USER has '
        'no roles: to allow it, name users, as in "user_id:alice or '
        'user_id:bob".'), *(
            policy.DocumentedRuleDefault(
                verb.policy, f'rule:{OPERATOR}', verb.about, [
                    {'path': prefix + verb.shown_rule, 'method': 'POST'}
                    for prefix in ('', '/api')])
            for verb in VERBS.values())]


class Policy:
    """The rules in force: the defaults, and the policy file of the service.

    :raises ConfigError: the policy file cannot be used.
    """

    def __init__(self, conf: Any):
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(list_rules())
        try:
            self._enforcer.load_rules()
        except Exception as exc:
            raise exceptions.ConfigError(
                f'[oslo_policy] policy_file cannot be used: '
                f'{wording.one_line(exc)}; correct the file') from exc

    def allows(self, verb: PageVerb, identity: Identity,
               target: Mapping[str, str]) -> bool:
        """Return whether *identity* may do *verb* to *target*.

        While the policy file cannot be read, nothing is allowed. If only one
        check cannot be evaluated, the actions that need it are refused.
        """
        try:
            return bool(self._enforcer.authorize(
                verb.policy, dict(target), identity.credentials))
        except Exception:
            LOG.exception('policy failed: rule=%s; this action is refused '
                          'until the policy file is correct', verb.policy)
            return False
