# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the release notes from releasenotes/notes."""

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
