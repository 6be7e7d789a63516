# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the release notes from releasenotes/notes."""

extensions = [
    'openstackdocstheme',
    'reno.sphinxext',
]

project = 'distperiodic Release Notes'
copyright = 'The distperiodic authors'
root_doc = 'index'

html_theme = 'openstackdocs'
pygments_style = 'native'
openstackdocs_auto_name = False
openstackdocs_auto_version = False
