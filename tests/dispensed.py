# SPDX-License-Identifier: Apache-2.0
"""A model of a task pool, and dispensers for tests."""


from distperiodic.dispenser import TaskDispenser
from tests.configured import configuration


def dispenser(url, pool, **options):
    """Return a dispenser of the pool in the store *url*."""
    return TaskDispenser(
        configuration(connection=url, **options), pool)


def order(item):
    """Sort key: the highest score first; of one score, ints before strs."""
    task, score = item
    return -score, isinstance(task, str), task


class Model:
    """A pool in memory, without a clock: its caller makes buckets expire."""

    def __init__(self):
        self.free = {}
        self.buckets = {}
        #: Worker that has finished each task that is done.
        self.done = {}

    def recreate(self, scores, again=False):
        """Set the tasks and their scores. If *again*, tasks that are done are
        offered as new.
        """
        if again:
            self.done = {task: worker for task, worker in self.done.items()
                         if task not in scores}
        for bucket in self.buckets.values():
            bucket.update({task: scores[task] for task in bucket
                           if task in scores})
        held = {task for bucket in self.buckets.values() for task in bucket}
        self.free = {task: score for task, score in scores.items()
                     if task not in held and task not in self.done}

    def assign(self, limit, worker):
        bucket = self.buckets.setdefault(worker, {})
        best = sorted(self.free.items(), key=order)
        for task, score in best[:max(0, limit - len(bucket))]:
            bucket[task] = score
            del self.free[task]
        tasks = sorted(bucket.items(), key=order)
        for task, score in tasks[limit:]:
            self.free[task] = score
            del bucket[task]
        return [task for task, _ in tasks[:limit]]

    def check(self, worker, tasks):
        return set(self.buckets.get(worker, ())) == set(tasks)

    def finish(self, worker, tasks):
        held = set(self.buckets.get(worker, ())) & set(tasks)
        for task in held:
            del self.buckets[worker][task]
        self.done |= dict.fromkeys(held, worker)
        return all(self.done.get(task) == worker for task in tasks)

    def give_back(self, worker, tasks):
        bucket = self.buckets.get(worker, {})
        held = set(bucket) & set(tasks)
        for task in held:
            self.free[task] = bucket.pop(task)
        return held == set(tasks)

    def expire(self, worker):
        self.free |= self.buckets.pop(worker, {})

    @property
    def numbers(self):
        """Return the numbers of free, assigned and done tasks.

        The fourth value is a dict: the number of assigned tasks by worker.
        """
        held = {worker: len(bucket)
                for worker, bucket in self.buckets.items() if bucket}
        return len(self.free), sum(held.values()), len(self.done), held
