# SPDX-License-Identifier: Apache-2.0
"""Runs each failed functional or chaos test once more, alone, at the end.

These tests start real processes, so a pause of the machine can make one of
them fail. If a test passes the second time, it is listed as flaky in the last
lines, and the run succeeds. A test that fails twice fails. A failed test of
another suite, an error during collection and a crash of a test process are
never excused.

``pytest --rerun-failed`` enables this. Its cache hands the names of flaky
tests on to the next command that uses this cache. So the last command of an
environment in ``tox.ini`` lists those of all its commands.
"""

import re
import subprocess
import sys

import pytest

SUITES = 'tests/functional/', 'tests/chaos/'
#: If this many tests fail again, a pause is not the reason, and the others are
#: not run again.
MOST = 5

_FLAKY = 'distperiodic/flaky'


def pytest_addoption(parser):
    parser.addoption(
        '--rerun-failed', action='store_true',
        help='Run each failed functional or chaos test once more, alone, '
             'after all others.')


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    result = yield
    config = session.config
    if config.getoption('rerun_failed') and not hasattr(config, 'workerinput'):
        reporter = config.pluginmanager.get_plugin('terminalreporter')
        session.testsfailed -= _rerun(reporter, config)
    return result


def _rerun(reporter, config):
    """Run failed tests again, and move the reports of those that pass.

    :returns: Number of reports that no longer count as failures.
    """
    # The report of a crash has another value of 'when', and a report of the
    # collection has none.
    failed = [report for kind in ('failed', 'error')
              for report in reporter.stats.get(kind, ())
              if getattr(report, 'when', '') in ('setup', 'call', 'teardown')
              and report.nodeid.startswith(SUITES)]
    names = {_name(report) for report in failed}
    if not names:
        return 0
    reporter.ensure_newline()
    reporter.write_sep('=', f'once more, alone: {len(names)} failed tests')
    reporter.flush()
    passed = names - _failed_again(sorted(names), config.rootpath)
    excused = [report for report in failed if _name(report) in passed]
    for kind in 'failed', 'error':
        reporter.stats[kind] = [report for report in reporter.stats.get(
            kind, ()) if report not in excused]
    reporter.stats['flaky'] = list(
        {_name(report): report for report in reversed(excused)}.values())
    earlier = config.cache.get(_FLAKY, ())
    config.cache.set(_FLAKY, sorted(passed.union(earlier)))
    return len(excused)


def _name(report):
    """Return the name of a test, without the group that pytest-xdist adds."""
    return re.sub(r'@\w+$', '', report.nodeid)


def _failed_again(names, root):
    """Run each of the tests *names*; return those that did not pass.

    Each test has a process of its own, because a connection or a thread that
    another test left behind would write to its log.
    """
    failed = set()
    for name in names:
        if len(failed) == MOST:
            return failed.union(names[names.index(name):])
        if subprocess.run(
                [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
                 name], cwd=root).returncode != pytest.ExitCode.OK:
            failed.add(name)
    return failed


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    for report in terminalreporter.stats.get('flaky', ()):
        terminalreporter.section(f'{_name(report)}, the first time', '_')
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, '-')
            terminalreporter.write_line(text)
    result = yield
    if config.getoption('rerun_failed'):
        for name in config.cache.get(_FLAKY, ()):
            terminalreporter.write_line(
                f'FLAKY {name}: failed once, then passed alone')
    return result
