# SPDX-License-Identifier: Apache-2.0
"""A message bus through a directory that the processes of one host share."""
import json
import os
import pathlib
import shutil
import threading
import time
import urllib.parse
import uuid

from distperiodic import exceptions
from distperiodic import ports


class DirectoryBus:
    """Driver for URLs of the form directory:///PATH."""

    def carrier(self, conf, url, *, inbox, monotonic):
        return Carrier(_path(url), inbox)

    def probe(self, conf, url):
        return Probe(_path(url))


def _path(url):
    path = urllib.parse.urlsplit(url).path
    if not path.startswith('/'):
        raise exceptions.ConfigError(
            f'transport_url {url} names no directory; it should look like '
            'directory:///var/spool/my-service')
    return pathlib.Path(path)


class Carrier:
    """Carrier that sends and receives the messages of one process."""

    def __init__(self, place, inbox):
        self._place = place
        self._inbox = inbox
        self._closed = threading.Event()
        self._reader = None

    def open(self, timeout):
        if self._inbox is None:
            return
        try:
            for name in [self._inbox.queue, *self._inbox.hears]:
                (self._place / name).mkdir(parents=True, exist_ok=True)
            for name in self._inbox.hears:
                (self._place / name / self._inbox.queue).touch()
        except OSError as exc:
            raise exceptions.BusUnavailable(
                f'{self._place}: {exc.strerror}; create it for this user'
            ) from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ended(self, timeout):
        return True

    def cast(self, topic, identity, payload):
        name = f'{topic}.{identity}'
        body = json.dumps(payload)
        hearers = [name]
        if identity == 'all' and (self._place / name).is_dir():
            hearers = os.listdir(self._place / name)
        if not [one for one in hearers if self._write(one, body)]:
            raise exceptions.NoConsumer(f'there is no queue {name}')

    def _write(self, queue, body):
        # The file names sort in the order of sending. The reader sees only
        # complete files, because a rename is atomic.
        file = f'{time.time_ns():020}-{uuid.uuid4().hex}'
        try:
            hidden = self._place / queue / f'.{file}'
            hidden.write_text(body)
            hidden.rename(self._place / queue / file)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise exceptions.BusUnavailable(
                f'{self._place}: {exc.strerror}') from None
        return True

    def _read(self):
        queue = self._place / self._inbox.queue
        while not self._closed.wait(0.02):
            for file in sorted(queue.glob('[0-9]*')):
                body = file.read_bytes()
                try:
                    payload = json.loads(body[:ports.LONGEST_MESSAGE])
                except ValueError:
                    self._inbox.on_garbage(str(queue), 'not JSON')
                else:
                    self._inbox.on_message(payload)
                # A crash before this line delivers the message again.
                file.unlink()

    def close(self, timeout):
        self._closed.set()
        if self._reader is None:
            return
        self._reader.join(timeout)
        for name in self._inbox.hears:
            (self._place / name / self._inbox.queue).unlink(missing_ok=True)
        shutil.rmtree(self._place / self._inbox.queue, ignore_errors=True)


class Probe:
    """Probe that checks the directory for distperiodic doctor."""

    tls, tls_remedy = True, ''

    def __init__(self, place):
        self._place = place
        self.hosts = [ports.BrokerHost('localhost', 0, '')]
        self.space = str(place)

    def __str__(self):
        return f'directory://{self._place}'

    def open_to_all(self, host):
        return None

    def check(self, host):
        if not os.access(self._place, os.W_OK):
            raise exceptions.BusUnavailable(
                f'{self._place} cannot be written; create it for this user')

    def check_rights(self, host, queue):
        place = self._place / queue
        try:
            place.mkdir()
            place.rmdir()
        except OSError as exc:
            raise exceptions.BusUnavailable(
                f'{exc.strerror}: {place}; allow this user to write') from None

    def find(self):
        self.check(self.hosts[0])
        return self.hosts[0]

    def weaknesses(self, host):
        return []

    def queues(self, host, names):
        return {name: ports.QueueState(
            len(list((self._place / name).glob('[0-9]*'))), 1)
            if (self._place / name).is_dir() else None for name in names}

    def delete(self, host, names):
        for name in names:
            shutil.rmtree(self._place / name, ignore_errors=True)
