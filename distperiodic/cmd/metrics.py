# SPDX-License-Identifier: Apache-2.0
"""``distperiodic metrics``: what the store knows, for Prometheus."""

import argparse
import signal
import threading
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration
from distperiodic.core.listen import parse_address
from distperiodic.core.metric_table import MetricSource
from distperiodic.operator import group_metrics
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.core.tally import Tally


class Metrics(Configured):
    """Print metrics of a group for Prometheus, which need no process.

    The values come from the store and the coordination service, so they are
    right also if all processes of the group are dead.

    Exit code 0: everything was read; 1: the store or the coordination service
    could not be read, as the metrics say as well.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            '--listen', metavar='HOST:PORT',
            help='serve the metrics at http://HOST:PORT/metrics until SIGINT '
                 'or SIGTERM, instead of printing them')
        where.add_argument(
            '--output', metavar='FILE',
            help='write the metrics to a file, which is replaced at once, for '
                 'the textfile collector of node_exporter')
        configured.add_expected(parser)

    def take_action(self, parsed: argparse.Namespace) -> int:
        try:
            from distperiodic.adapters.prometheus import exposition
        except ImportError as exc:
            raise exceptions.ConfigError(
                'metrics need the Python module prometheus_client, which is '
                'not installed; install it with: '
                "pip install 'distperiodic[metrics]'") from exc
        conf = configuration(parsed)

        def read() -> group_metrics.GroupMetrics:
            with Sources(parsed, lambda: conf) as sources:
                return group_metrics.read(
                    sources, parsed.expect, parsed.expect_workers)
        with Sources(parsed, lambda: conf) as sources:
            if not sources.settings.connection:
                # Without a store, only the coordination service knows the
                # group.
                sources.check_backend()
        if parsed.listen:
            address = parse_address(parsed.listen, '--listen')
            served = group_metrics.ServedMetrics(
                read, SystemClock(), self._report)
            try:
                exposition.serve(served, address, MetricSource.STORE)
            except OSError as exc:
                raise exceptions.ConfigError(
                    f'--listen {address}: {exc.strerror or exc}; give another '
                    'address, such as --listen 127.0.0.1:9465') from exc
            signal.signal(signal.SIGTERM, _stop)
            print(f'the metrics: http://{address}/metrics',
                  file=self.app.stdout, flush=True)
            threading.Event().wait()
        found = read()

        def tally() -> 'Tally':
            return found.tally
        if parsed.output:
            try:
                exposition.write(tally, MetricSource.STORE, parsed.output)
            except OSError as exc:
                raise exceptions.ConfigError(
                    f'--output {parsed.output}: {exc.strerror}; give a file '
                    'in a directory that this user may write') from exc
        else:
            self.app.stdout.write(exposition.text(tally, MetricSource.STORE))
        for problem in found.problems:
            self._report(problem)
        return configured.FINDING if found.problems else configured.FINE

    def _report(self, problem: str) -> None:
        print(f'distperiodic: {configured.one_line(problem)}',
              file=self.app.stderr, flush=True)


def _stop(number: int, frame: object) -> None:
    raise SystemExit(0)
