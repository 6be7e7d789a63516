# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation: from this tree, without a network."""

extensions = [
    'openstackdocstheme',
    'oslo_config.sphinxext',
    'sphinx.ext.autodoc',
]

project = 'distperiodic'
copyright = 'The distperiodic authors'
root_doc = 'index'
exclude_patterns = []
nitpicky = False

html_theme = 'openstackdocs'
pygments_style = 'native'
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_use_storyboard = False

autodoc_member_order = 'bysource'
autodoc_typehints = 'none'
