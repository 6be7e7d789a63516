# SPDX-License-Identifier: Apache-2.0
"""Draw the transitions of a claim from the table in core/claim.py.

    python doc/claim_moves.py > doc/source/explanation/claim-moves.txt

A unit test compares the file with the output of this script.
"""

import pathlib
import re

from distperiodic.core import claim

_SOURCE = pathlib.Path(claim.__file__).read_text()


def _meaning(state: claim.State) -> str:
    """Return the text of the comment above *state* in core/claim.py."""
    found = re.search(rf"((?: +#: .*\n)+) +{state.name} = ", _SOURCE)
    assert found is not None, state
    return ' '.join(line.strip().removeprefix('#: ')
                    for line in found[1].splitlines())


def _arrows(state: claim.State) -> list[str]:
    moves = [move for move in claim.Move if claim.allowed(move, state)]
    width = max(len(move.value) for move in claim.Move)
    arrows = [f'── {move.value} {"─" * (width - len(move.value))}──► '
              f'{claim.MOVES[move][1].value}' for move in moves]
    last = len(arrows) - 1
    return [('└' if at == last else '├') + arrow
            for at, arrow in enumerate(arrows)]


def picture() -> str:
    """Return the text: each state, and below it the transitions from it."""
    lines = []
    for ends, title in ((False, 'open'), (True, 'ended')):
        lines += [title, '']
        for state in claim.State:
            if (state in claim.ENDINGS) is ends:
                lines.append(f'  {state.value}: {_meaning(state)}')
                lines += [f'    {arrow}' for arrow in _arrows(state)]
                lines.append('')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(picture(), end='')
