# SPDX-License-Identifier: Apache-2.0
"""Prometheus as a single server, for one test."""

import contextlib
import json
import pathlib
import urllib.request
from collections.abc import Iterator

from tests.services import ports
from tests.services import process
from tests.services import server


class Prometheus(server.Server):
    """A Prometheus that scrapes and evaluates rules each second."""

    def __init__(self, port: int, runner: server.Runner):
        super().__init__(f'http://{ports.HOST}:{port}', runner)

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(  # noqa: S310
                self.url + path, timeout=10) as answer:
            found: bytes = answer.read()
        return found

    def answers(self) -> bool:
        return b'Ready' in self._read('/-/ready')

    def alerts(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        found = json.loads(self._read('/api/v1/alerts'))['data']['alerts']
        return [one['labels'] for one in found if one['state'] == 'firing']

    def sum(self, metric: str) -> float:
        """Return the sum of the values of a metric. It is 0 if none exists.
        """
        found = json.loads(self._read(
            f'/api/v1/query?query=sum({metric})'))['data']['result']
        return sum(float(one['value'][1]) for one in found)


@contextlib.contextmanager
def prometheus(config: str, rules: str) -> Iterator[Prometheus]:
    """Yield a server with this configuration and this file of rules.

    :param config: Text of the configuration, without ``global``.
    :param rules: Text of the file ``distperiodic.rules.yml`` beside it.
    """
    program = server.program('prometheus', 'prometheus')
    port = ports.free_port()
    with server.directory('prometheus') as place:
        file = place / 'prometheus.yml'
        file.write_text('global: {scrape_interval: 1s, evaluation_interval: '
                        f'1s}}\n{config}')
        (place / 'distperiodic.rules.yml').write_text(rules)
        with server.running(_started_here(
                program, place / 'data', port, file)) as one:
            yield one


def _started_here(program: str, data: pathlib.Path, port: int,
                  config: pathlib.Path) -> Prometheus:
    return Prometheus(port, process.Process(
        [program, f'--config.file={config}', f'--storage.tsdb.path={data}',
         f'--web.listen-address={ports.HOST}:{port}', '--log.level=warn'],
        data))
