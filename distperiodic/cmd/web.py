# SPDX-License-Identifier: Apache-2.0
"""``distperiodic web``: serve the page of a group."""

import argparse

from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration


class Web(Configured):
    """Serve the page of a group, which shows its health, jobs and members.

    The page has no log-in: by default, only this host can open it. To let
    others open it, mount it in a server that authenticates them. The page only
    reads, unless web_actions is true: then this command prints an address with
    a key, and a browser that has opened this address can act as you.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--listen', metavar='HOST:PORT', default='127.0.0.1:8088',
            help='address of the page; default: 127.0.0.1:8088')

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic import opts
        from distperiodic import web
        from distperiodic.adapters.local.process_slot import user_name
        from distperiodic.core.listen import parse_address
        from distperiodic.web import server
        host, port = parse_address(parsed.listen, '--listen', lowest=0)
        conf = configuration(parsed)
        application = web.application(conf)
        settings, loopback = opts.settings(conf), server.is_loopback(host)
        of_user, key = settings.web_identity == 'local', ''
        if settings.web_actions and of_user and loopback:
            application = holder = server.KeyHolder(application, user_name())
            key = f'?key={holder.key}'

        def started(url: str) -> None:
            print(f'the page: {url}{key}', file=self.app.stdout, flush=True)
            if key:
                print('note: a browser that opens this address can act as you',
                      file=self.app.stderr, flush=True)
            elif settings.web_actions:
                print('note: actions on this page are not possible: '
                      + ('for actions, listen at an address of this host'
                         if of_user else 'no log-in stands before it, so set '
                         'web_identity = local'),
                      file=self.app.stderr, flush=True)
            if not loopback:
                print(f'note: everybody who can reach {host} can read this '
                      'page', file=self.app.stderr, flush=True)
        server.serve(application, host, port, started)
