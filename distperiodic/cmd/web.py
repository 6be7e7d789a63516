# SPDX-License-Identifier: Apache-2.0
"""``distperiodic web``: serve the page of a group."""

import argparse

from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration


class Web(Configured):
    """Serve the page of a group, which shows its health, jobs and members.

    The page only reads. It has no log-in: by default, only this host can open
    it. To let others open it, mount it in a server that authenticates them.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--listen', metavar='HOST:PORT', default='127.0.0.1:8088',
            help='address of the page; default: 127.0.0.1:8088')

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic import web
        from distperiodic.web import server
        host, port = server.address(parsed.listen)
        application = web.application(configuration(parsed))

        def started(url: str) -> None:
            print(f'the page: {url}', file=self.app.stdout, flush=True)
            if not server.is_loopback(host):
                print(f'note: everybody who can reach {host} can read this '
                      'page', file=self.app.stderr, flush=True)
        server.serve(application, host, port, started)
