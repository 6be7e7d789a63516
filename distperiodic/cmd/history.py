# SPDX-License-Identifier: Apache-2.0
"""``distperiodic history``: the outcome of each tick."""

import argparse
from collections.abc import Sequence
from typing import Any

from distperiodic.cmd import display
from distperiodic.operator.lists import tick_list

_ALWAYS = ('Job', 'Tick', 'Due', 'Done', 'Mean late (ms)', 'Most late (ms)',
           'Mean run (ms)')


class History(tick_list.Ticks, display.List):

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        if parsed.formatter == 'table' and not parsed.columns:
            shown = [name for at, name in enumerate(columns)
                     if name in _ALWAYS or any(row[at] for row in data)]
            data = [[row[columns.index(name)] for name in shown]
                    for row in data]
            columns = shown
        return super().produce_output(parsed, columns, data)
