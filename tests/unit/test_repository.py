# SPDX-License-Identifier: Apache-2.0
"""Rules that the files of the repository obey."""

import ast
import configparser
import functools
import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys
import tokenize
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / 'distperiodic'
MODULES = sorted(PACKAGE.rglob('*.py'))
SOURCES = [*MODULES, *sorted((ROOT / 'tests').rglob('*.py'))]


def found_in(paths, find):
    """Return the files in which *find* finds a fault, each with the findings.

    One test for all files is much faster than a test for each file.
    """
    found = {str(path.relative_to(ROOT)): find(path) for path in paths}
    return {name: findings for name, findings in found.items() if findings}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def readme_commands():
    """Return the lines of README.rst's literal blocks."""
    text = (ROOT / 'README.rst').read_text()
    blocks = re.findall(r'::\n\n((?:    .*\n|\n)+)', text)
    return [line.strip() for block in blocks
            for line in block.splitlines() if line.strip()]


def entry_points():
    """Return the entry points of pyproject.toml, installed or not."""
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    groups = project['entry-points'] | {'console_scripts': project['scripts']}
    return [importlib.metadata.EntryPoint(name, value, group)
            for group, entries in groups.items()
            for name, value in entries.items()]


def test_ci_runs_the_commands_that_the_readme_gives_a_newcomer():
    ci = (ROOT / '.ci' / 'run').read_text().splitlines()
    for_newcomers = [line for line in readme_commands()
                     if 'pip install .' in line or 'run-tests' in line]

    assert len(for_newcomers) == 2
    assert [line for line in for_newcomers if line not in ci] == []


def test_the_default_run_omits_only_the_tests_that_are_marked():
    """The environment ``full`` has the same commands, without a selection."""
    tox = configparser.RawConfigParser()
    tox.read(ROOT / 'tox.ini')
    default, full = (tox['testenv:' + name]['commands'].strip().splitlines()
                     for name in ('py3', 'full'))

    assert [line for line in default if not line.startswith('#')] == [
        '{[tests]compile}',
        '{[tests]first} -n 4 -m "not full" tests/chaos',
        '{[tests]others} -m "not full"']
    assert [line for line in full if not line.startswith('#')] == [
        '{[tests]compile}',
        '{[tests]chaos} -n 1 --hypothesis-profile=full',
        '{[tests]first} -n 3 --hypothesis-profile=full',
        '{[tests]others} --hypothesis-profile=full']
    run = ' '.join(tox['tests'][name] for name in (
        'parallel', 'chaos', 'first', 'others'))
    assert not re.search(
        r' (-m|-k|--(deselect|ignore|last-failed|lf)\b)', run)
    assert {path for path in run.split() if path.startswith('tests/')} == {
        f'tests/{path.parent.name}'
        for path in (ROOT / 'tests').glob('*/test_*.py')} - {
            'tests/benchmarks'}
    assert 'py3' in tox['tox']['env_list']


def test_a_source_file_names_its_licence_first():
    def unlicensed(path):
        text = path.read_text()
        return text and not text.startswith(
            '# SPDX-License-Identifier: Apache-2.0\n')

    assert found_in(SOURCES, unlicensed) == {}, (
        'begin these files with # SPDX-License-Identifier: Apache-2.0')


def test_no_module_has_a_name_without_a_meaning():
    assert {path.stem for path in MODULES} & {
        'base', 'common', 'helpers', 'models', 'utils'} == set(), (
        'name each module after its purpose')


def test_no_module_reads_the_time_past_the_clock():
    reads = {
        'time': {'monotonic', 'monotonic_ns', 'perf_counter', 'sleep',
                 'time', 'time_ns'},
        'datetime': {'now', 'today', 'utcnow'},
        'date': {'today'},
        'timeutils': {'now', 'utcnow', 'utcnow_ts'},
    }

    def past_the_clock(path):
        return [
            f'line {node.lineno}: {ast.unparse(node)}'
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Attribute)
            and node.attr in reads.get(
                getattr(node.value, 'attr', getattr(node.value, 'id', '')),
                ())]

    # It takes long to parse a file.
    suspicious = re.compile('|'.join(
        rf'\b{module}\.({"|".join(names)})\b'
        for module, names in reads.items()))
    assert found_in([path for path in MODULES if path.name != 'clock.py'
                     and suspicious.search(path.read_text())],
                    past_the_clock) == {}, (
        'take the time from a ports.Clock; adapters/local/clock.py reads it')


def test_importing_the_library_picks_no_backend_for_the_process():
    """An import of some of these modules could fix eventlet as the backend of
    the process.
    """
    heavy = ['eventlet', 'oslo_messaging', 'oslo_service', 'sqlalchemy']
    loaded = subprocess.run(
        [sys.executable, '-c',
         'import sys, distperiodic; '
         f'print([name for name in {heavy!r} if name in sys.modules])'],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == '[]'


@pytest.mark.parametrize('entry', entry_points(), ids=lambda entry: entry.name)
def test_an_entry_point_leads_somewhere(entry):
    # An entry point for pytest names a module. Every other entry point names a
    # callable.
    leads = inspect.ismodule if entry.group == 'pytest11' else callable
    assert leads(entry.load())


def test_the_sample_configuration_is_generated_from_the_options(tmp_path):
    written = tmp_path / 'distperiodic.conf.sample'
    subprocess.run(
        [sys.executable, '-m', 'oslo_config.generator',
         '--config-file', 'etc/oslo-config-generator/distperiodic.conf',
         '--output-file', str(written)], cwd=ROOT, check=True)
    kept = ROOT / 'etc' / 'distperiodic.conf.sample'

    assert written.read_text() == kept.read_text(), 'run: tox -e genconfig'


# -- plain English

HACKING = (ROOT / 'HACKING.rst').read_text()
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef
#: Names, which are not English words: literals, references, parameters.
_NAMES = re.compile(r'``[^`]*``|:\w+:`[^`]*`|\*\w+\*|:param \w+:')


def phrases(intro):
    """Return the phrases in italics that follow *intro* in HACKING.rst."""
    rule = re.search(rf'{intro}(.*?)\.\n', HACKING, re.DOTALL)
    return [' '.join(phrase.split())
            for phrase in re.findall(r'\*([^*]+)\*', rule[1])
            if ' X ' not in phrase]


def docstrings(path):
    found = (ast.get_docstring(node)
             for node in ast.walk(tree_of(path))
             if isinstance(node, _DOCUMENTED))
    return [text for text in found if text]


def comments(path):
    with path.open('rb') as source:
        return [token.string for token in tokenize.tokenize(source.readline)
                if token.type == tokenize.COMMENT]


def test_the_product_avoids_the_phrases_that_hacking_names():
    avoided = re.compile(
        rf'\b(?:{"|".join(phrases("Avoid"))})\b', re.IGNORECASE)

    def avoids(text):
        return not avoided.search(' '.join(_NAMES.sub('', text).split()))

    # Few files have such a phrase at all. It takes long to read their tokens.
    assert found_in(
        [path for path in MODULES if not avoids(path.read_text())],
        lambda path: [text for text in [*docstrings(path), *comments(path)]
                      if not avoids(text)]) == {}, (
        'HACKING.rst, "English", lists the phrases to avoid')


def test_a_docstring_begins_with_a_verb_or_a_noun():
    avoided = phrases('Never begin it with')
    # It takes long to parse a file.
    suspicious = re.compile(rf'"""\s*(?:{"|".join(avoided)})\b')

    assert found_in([
        path for path in MODULES if suspicious.search(path.read_text())
    ], lambda path: [
        text for text in docstrings(path)
        if text.split()[0] in avoided]) == {}, (
        'HACKING.rst, "English", describes how a docstring begins')


def test_hacking_names_phrases_to_avoid():
    assert {'told', 'so many', 'has its turn'} <= set(phrases('Avoid'))
    assert 'Whether' in phrases('Never begin it with')
