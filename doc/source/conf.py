# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation: from this tree, without a network."""

extensions = [
    'oslo_config.sphinxext',
    'sphinx.ext.autodoc',
]

project = 'distperiodic'
copyright = 'The distperiodic authors'
root_doc = 'index'
exclude_patterns = []
nitpicky = False

html_theme = 'furo'
html_title = 'distperiodic'
html_copy_source = False
html_show_sphinx = False

autodoc_member_order = 'bysource'
autodoc_typehints = 'none'
