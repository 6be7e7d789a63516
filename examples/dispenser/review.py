# SPDX-License-Identifier: Apache-2.0
"""Three reviewers pull documents from one pool, the most urgent first.

Run the program as::

    python review.py --config-file review.conf

One reviewer dies with documents in its bucket. After ``bucket_timeout`` the
other reviewers get these documents. Each document is reviewed exactly once.
"""

import multiprocessing
import os
import sys
import time

from oslo_config import cfg

from distperiodic import TaskDispenser

URGENCY = {f'document-{number:02d}': number % 10 for number in range(30)}


def review(name: str, dies: bool) -> None:
    """Review documents until all are done."""
    pool = TaskDispenser(cfg.CONF, 'documents')
    while pool.stats().done < len(URGENCY):
        documents = pool.assign_tasks(3, name)
        if dies and documents:
            print(f'{name} dies and had {" ".join(documents)}', flush=True)
            os._exit(1)
        for document in documents:
            if pool.tasks_done(name, [document]):
                print(f'{name} reviewed {document}', flush=True)
        if not documents:
            time.sleep(0.2)


def main() -> None:
    cfg.CONF(sys.argv[1:])
    pool = TaskDispenser(cfg.CONF, 'documents')
    # Offer all documents, including those that an earlier run of this program
    # has reviewed.
    pool.recreate_task_pool(URGENCY, as_of=pool.now())
    reviewers = [
        multiprocessing.Process(target=review, args=(name, name == 'bob'))
        for name in ('ann', 'bob', 'cid')]
    for reviewer in reviewers:
        reviewer.start()
    for reviewer in reviewers:
        reviewer.join()
    print(pool.stats(), flush=True)


if __name__ == '__main__':
    main()
