# SPDX-License-Identifier: Apache-2.0
"""Commands about tasks, in the tests of operator commands."""

import json
import uuid

import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import ports
from distperiodic import tasks
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from tests.functional import modules


class Desk:
    """Commands about the tasks of a place, and runs of the steps of these
    tasks.
    """

    def __init__(self, place):
        self.place = place
        workflows = place.config.parent / 'workflows.json'
        workflows.write_text(json.dumps(modules.WORKFLOWS))
        with place.config.open('a') as file:
            file.write(f'workflows = {workflows}\n')
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(place.config)])
        self.client = tasks.Client(conf)

    def submit(self, *argv):
        return self.place.ask('task', 'submit', *argv).strip()

    def show(self, task):
        code, told = self.place.tell('task', 'show', task)
        assert code == 0
        return told

    def take(self, module='a'):
        """Let a scheduler claim all ready steps of a module."""
        steps = self.place.store.steps
        steps.wake()
        return steps.take(
            [{f'task:{module}.run': 100}], None,
            NewLease(uuid.uuid4().hex, 'api-1', 60.0))

    def run(self, module='a', error=None):
        """Run all ready steps of a module until they end."""
        for lease in self.take(module):
            keys = [claim.object for claim in lease.claims]
            running = self.start(lease)
            ends = dict.fromkeys(keys, error)
            self.place.store.steps.advance(ports.EndedSteps(
                HeldLease(running, lease.job, lease.tick),
                {} if error else ends, ends if error else {}),
                into=uuid.uuid4().hex, pause=lambda attempt: 600.0)

    def retake(self):
        """Let a scheduler take over the expired leases."""
        return self.place.store.take_over_expired(
            TakeOverRequest(['task:a.run'], (), 100),
            NewLease(uuid.uuid4().hex, 'api-1', 60.0))

    def start(self, lease, seconds=60.0,
              holder='host-1:2~00112233aabbccdd'):
        running = uuid.uuid4().hex
        self.place.store.start(
            lease.held, [c.object for c in lease.claims],
            NewLease(running, holder, seconds))
        return running

    def serve(self, *names, part='', name='api-1', **state):
        """Add a live member whose report has these commands."""
        pools = {module: {'size': 1, 'busy': 0, 'queued': 0}
                 for module in 'ab'}
        # The report stays new for the whole test.
        self.place.add_member(
            name, f'{name}~1', {'commands': names, 'pools': pools, **state},
            part, ahead=3600.0)

    def wait_long(self):
        """Make the steps that are ready older."""
        engine = database.make_engine(self.place.url)
        with engine.begin() as connection:
            connection.execute(sa.update(tables.ready).where(
                tables.ready.c.task.in_(sa.select(tables.task.c.id).where(
                    tables.task.c.space == self.place.group))).values(
                        due=tables.ready.c.due - 60_000_000))
        engine.dispose()

    def findings(self, *argv):
        """Return the findings of doctor about tasks and health, by check. If
        a check has several findings, the last one is returned.
        """
        found = {row['check']: row for row in self.place.tell(
            'doctor', *argv)[1] if row['area'] in ('tasks', 'health')}
        assert all(row['result'] in ('ok', 'skip') or row['remedy']
                   for row in found.values())
        return {name: (row['result'], row['finding'])
                for name, row in found.items()}

    def lose(self, task, table):
        """Delete the row by which a process would find the next step of a
        task.
        """
        column = {'distperiodic_ready': 'task', 'distperiodic_claim': 'object'}
        engine = database.make_engine(self.place.url)
        with engine.begin() as connection:
            connection.execute(sa.delete(table).where(
                table.c[column[table.name]] == task))
        engine.dispose()

    def age(self, task, days):
        """Make an ended task older."""
        engine = database.make_engine(self.place.url)
        past = days * 86400 * 1_000_000
        with engine.begin() as connection:
            connection.execute(sa.update(tables.task).where(
                tables.task.c.id == task).values(
                    created=tables.task.c.created - past,
                    ended=tables.task.c.ended - past))
        engine.dispose()

    def claims(self):
        return self.place.rows(tables.claim)
