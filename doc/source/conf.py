# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation: from this tree, without a network."""

extensions = [
    'oslo_config.sphinxext',
    'sphinx.ext.autodoc',
    'sphinx.ext.autosummary',
    'sphinx_copybutton',
]

project = 'distperiodic'
copyright = 'The distperiodic authors'
root_doc = 'index'
exclude_patterns = []
nitpicky = True
nitpick_ignore_regex = [
    # Types of other projects: their pages would need a network.
    ('py:class', r'(collections|datetime|oslo_\w+|sqlalchemy)\..+'),
    # Types of parameters that also accept the text that is documented, and
    # types that only pass through.
    ('py:class', r'distperiodic\.core\.(job|ring|schedule)\..+'),
    ('py:class', r'distperiodic\.periodic\.Method'),
]

# Most blocks without a language of their own are commands.
highlight_language = 'shell'

html_theme = 'furo'
html_title = 'distperiodic'
html_copy_source = False
html_show_sphinx = False
html_static_path = ['static']
html_css_files = ['pages.css']

# Importing the package selects no backend of oslo.service. So autodoc may
# import it in the process of the build.
autodoc_member_order = 'bysource'
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented_params'
autodoc_typehints_format = 'short'
autosummary_generate = False
toc_object_entries_show_parents = 'hide'
python_use_unqualified_type_names = True
maximum_signature_line_length = 60

# Copy a command without its prompt. If a block has lines with a prompt, copy
# only these lines, and not the output.
copybutton_prompt_text = r'\$ '
copybutton_prompt_is_regexp = True
# Blocks of plain text are pictures and log lines.
copybutton_selector = 'div:not(.highlight-text) > div.highlight > pre'
copybutton_line_continuation_character = '\\'
