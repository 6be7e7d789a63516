# SPDX-License-Identifier: Apache-2.0
"""The samples in etc agree with the options and the rules."""

import io
import pathlib
import re

import pytest
from oslo_config import cfg
from oslo_config import generator
from oslo_policy import generator as policy_generator

from distperiodic import opts

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ROOT / 'etc' / 'distperiodic.conf.sample'
POLICY = ROOT / 'etc' / 'distperiodic.policy.yaml.sample'


def generated():
    """Return the text that tox -e genconfig writes."""
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(['--config-file',
          str(ROOT / 'etc' / 'oslo-config-generator' / 'distperiodic.conf')],
         default_config_files=[])
    text = io.StringIO()
    generator.generate(conf, text)
    return text.getvalue()


def options(text):
    """Map (section, option) to the help, type and default in a sample.

    Releases of oslo.config break lines differently, and add different limits
    and notes. The result is independent of these differences.
    """
    found, section = {}, 'distperiodic'
    for block in re.split(r'\n\n+', text.partition('[distperiodic]')[2]):
        *comment, last = block.strip().splitlines() or ['']
        section = last[1:-1] if last.startswith('[') else section
        name, equals, default = last.removeprefix('#').partition('=')
        if not equals:
            continue
        words = ' '.join(' '.join(line.lstrip('#') for line in comment)
                         .split())
        # A line break may follow the hyphen of a word.
        words = re.sub(r'(?<=\w)- (?=\w)', '-', words)
        told, kind = re.match(r'(.*?) \((\w[\w ]* ?valued?)\)', words).groups()
        found[section, name.strip()] = told, kind, default.strip()
    return found


def test_it_is_up_to_date():
    assert options(SAMPLE.read_text()) == options(generated()), (
        'run: tox -e genconfig')


def test_it_has_every_option_with_its_help():
    sample = options(SAMPLE.read_text())

    assert {name: told for name, (told, _, _) in sample.items()} == {
        (section, opt.name): ' '.join(opt.help.split())
        for section, options in opts.list_opts() for opt in options}


def test_it_can_be_used_as_it_is():
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(SAMPLE)], project='distperiodic')

    assert opts.settings(conf) == opts.settings(cfg.ConfigOpts())


def test_the_sample_of_the_policy_is_up_to_date(tmp_path):
    policy_generator.generate_sample([
        '--namespace', 'distperiodic', '--output-file',
        str(tmp_path / 'policy.yaml')])

    assert POLICY.read_text().strip() == (
        tmp_path / 'policy.yaml').read_text().strip(), 'run: tox -e genpolicy'


@pytest.mark.parametrize('opt', opts.OPTS, ids=lambda opt: opt.name)
def test_an_option_that_may_hold_a_password_is_secret(opt):
    assert opt.secret == opt.name.endswith((
        '_url', '_key', '_secret', 'connection'))
