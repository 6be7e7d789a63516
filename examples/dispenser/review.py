# SPDX-License-Identifier: Apache-2.0
"""Three reviewers pull documents from one pool, the most urgent first.

Run the program as::

    python review.py --config-file review.conf

One reviewer dies with documents in its bucket. After ``bucket_timeout`` the
other reviewers get these documents. At the end the program checks that each
document was reviewed exactly once.
"""

import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

from oslo_config import cfg

from distperiodic import TaskDispenser

URGENCY = {f'document-{number:02d}': number % 10 for number in range(30)}
# Seconds after which the program gives up.
LIMIT = 60


def review(name: str, dies: bool, journal: str) -> None:
    """Review documents until all are done."""
    pool = TaskDispenser(cfg.CONF, 'documents')
    while pool.stats().done < len(URGENCY):
        documents = pool.assign_tasks(3, name)
        write(journal, 'assigned', name, documents)
        if dies and documents:
            print(f'{name} dies and had {" ".join(documents)}', flush=True)
            write(journal, 'died', name, documents)
            os._exit(1)
        for document in documents:
            if pool.tasks_done(name, [document]):
                write(journal, 'done', name, [document])
                print(f'{name} reviewed {document}', flush=True)
        if not documents:
            time.sleep(0.2)


def write(journal, event, name, documents):
    """Write one line for each document into the journal, in one write."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND)
    os.write(file, ''.join(f'{event} {name} {document}\n'
                           for document in documents).encode())
    os.close(file)


def main() -> int:
    cfg.CONF(sys.argv[1:])
    pool = TaskDispenser(cfg.CONF, 'documents')
    # Offer all documents, including those that an earlier run of this program
    # has reviewed.
    pool.recreate_task_pool(URGENCY, as_of=pool.now())
    journal = pathlib.Path(tempfile.mkdtemp(prefix='dispenser-')) / 'journal'
    journal.touch()
    reviewers = [
        multiprocessing.Process(
            target=review, args=(name, name == 'bob', str(journal)))
        for name in ('ann', 'bob', 'cid')]
    end = time.monotonic() + LIMIT
    for reviewer in reviewers:
        reviewer.start()
    for reviewer in reviewers:
        reviewer.join(max(0, end - time.monotonic()))
        reviewer.kill()
    print(pool.stats(), flush=True)
    return account(journal.read_text().splitlines())


def faults(lines: list[str]) -> list[str]:
    """Return the faults in the events of the journal, as sentences."""
    holders: dict[str, str] = {}
    done, died, wrong = set(), set(), []
    for event, name, document in (line.split() for line in lines):
        holder = holders.get(document)
        if event == 'died':
            died.add(name)
        elif document in done:
            wrong.append(f'{document} was {event} to {name} after it was done'
                         if event == 'assigned' else
                         f'{document} was done twice')
        elif event == 'done':
            if holder != name:
                wrong.append(f'{name} reviewed {document}, which was in the '
                             f'bucket of {holder}')
            done.add(document)
        else:
            if holder not in (None, name) and holder not in died:
                wrong.append(f'{document} was in the buckets of {holder} and '
                             f'{name}')
            holders[document] = name
    if lost := sorted(URGENCY.keys() - done):
        wrong.append(f'{" ".join(lost)}: not reviewed within {LIMIT} s')
    return wrong


def account(lines: list[str]) -> int:
    """Print the result. Return 0 if nothing is wrong."""
    if wrong := faults(lines):
        print('WRONG:', *wrong, sep='\n  ')
        return 1
    print(f'{len(URGENCY)} documents were reviewed once each; none was in two '
          'buckets')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
