# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation: from this tree, without a network."""

import html
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

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

# Blocks without a language of their own are commands.
highlight_language = 'none'

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
maximum_signature_line_length = 88

# Copy a command without its prompt. If a block has lines with a prompt, copy
# only these lines, and not the output.
copybutton_prompt_text = r'\$ '
copybutton_prompt_is_regexp = True
# Blocks of plain text are pictures and log lines.
copybutton_selector = 'div:not(.highlight-text) > div.highlight > pre'
copybutton_line_continuation_character = '\\'


class Translator(HTML5Translator):
    """Let the long name of a file or a test break behind its separators.

    In a list of such names each one begins a line.
    """

    def visit_literal(self, node: nodes.literal) -> None:
        name = node.astext()
        if ' ' in name or len(name) < 40:
            super().visit_literal(node)
            return
        at = node.parent.index(node)
        if at and node.parent[at - 1].astext() == ',\n':
            self.body.append('<br>')
        self.body += [
            self.starttag(node, 'code', '', CLASS='literal long-name'),
            '<wbr>'.join(map(html.escape, re.findall(
                '[^/_:]*[/_:]+|[^/_:]+', name))),
            '</code>']
        raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.set_translator('html', Translator)
