# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation: from this tree, without a network."""

import html
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
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
    ('py:class', r'CollectorRegistry|TracerProvider'),
    # Types of parameters that also accept the text that is documented, and
    # types that only pass through.
    ('py:class',
     r'distperiodic\.core\.(job|job_set|ring|schedule|telemetry)\..+'),
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


# The places at which a name may break: after a separator, but not within '::'
# or before the end of 'file.py'.
_BREAK = re.compile(r'(?<=[/_:~])(?![/_:~])|(?<=\.)(?!py\b|\.)')


class Translator(HTML5Translator):
    """Let long names break after their separators.

    In a table, shorter names may break, too, because a column is narrow. In a
    list with one name per line of the source, each name begins a new line.
    """

    def visit_literal(self, node: nodes.literal) -> None:
        name, parent = node.astext(), node.parent
        short = 12 if self.in_table(node) else 40
        if ' ' in name or len(name) < short:
            super().visit_literal(node)
            return
        at = parent.index(node)
        if at and parent[at - 1].astext() == ',\n':
            self.body.append('<br>')
        self.body += [
            self.starttag(node, 'code', '', CLASS='literal notranslate'),
            '<wbr>'.join(map(html.escape, _BREAK.split(name))),
            '</code>']
        raise nodes.SkipNode

    def in_table(self, node: nodes.Node) -> bool:
        while node.parent is not None:
            node = node.parent
            if isinstance(node, nodes.entry):
                return True
        return False


def show_options(app: Sphinx, what: str, name: str, function: Any,
                 *_: Any) -> None:
    """Show the signature that a function has for help(), not its overloads.
    """
    if hasattr(function, '__signature__'):
        analyzer = ModuleAnalyzer.for_module(function.__module__)
        analyzer.analyze()
        analyzer.overloads.pop(function.__name__, None)


def setup(app: Sphinx) -> None:
    app.set_translator('html', Translator)
    app.connect('autodoc-process-signature', show_options)
