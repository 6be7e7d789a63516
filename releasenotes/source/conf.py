# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the release notes from releasenotes/notes."""

from dulwich import diff_tree
from reno import scanner


class _Changes(scanner._ChangeAggregator):
    """Take a note that a merge changes on one side and adds on the other as
    changed.

    This history has such a merge, and reno 4.1 refuses it.
    """

    def aggregate_changes(self, walk_entry, changes):
        sides = [list(side) if isinstance(side, list) else [side]
                 for side in changes]
        changed = {change.new.path for side in sides for change in side
                   if change.type == diff_tree.CHANGE_MODIFY}
        return super().aggregate_changes(walk_entry, [
            [change for change in side
             if change.type != diff_tree.CHANGE_ADD
             or change.new.path not in changed] for side in sides])


scanner._ChangeAggregator = _Changes

extensions = [
    'reno.sphinxext',
]

project = 'distperiodic Release Notes'
copyright = 'The distperiodic authors'
root_doc = 'index'

html_theme = 'furo'
html_title = 'distperiodic release notes'
html_copy_source = False
html_show_sphinx = False
