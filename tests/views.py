# SPDX-License-Identifier: Apache-2.0
"""A member's views of its groups, set by the test."""

from distperiodic import exceptions


class Views(dict):
    """Views by group. See :class:`distperiodic.ports.Membership`."""

    def view(self, group):
        try:
            return self[group]
        except KeyError:
            raise exceptions.ViewUnknown('nothing yet') from None
