# SPDX-License-Identifier: Apache-2.0
"""``distperiodic demo``: real processes that share work, fail and recover."""

import argparse
import contextlib

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration


class Demo(Configured):
    """Watch real processes share work while members join, die and freeze.

    Three members share the pings of 200 hosts; every host is pinged every two
    seconds. A fourth member joins, one is killed, one is frozen and resumes.
    After about a minute a summary shows how many pings were served and missed,
    and how many hosts changed their owner.

    The demo needs no server. To run it over ZooKeeper, RabbitMQ and a
    database, give --backend-url, --transport-url and --connection, or set
    these options in a file that --config-file names.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--backend-url', default='', metavar='URL',
            help='coordination service, such as zookeeper://host:2181. '
                 'Default: files in a temporary directory')
        parser.add_argument(
            '--transport-url', default='', metavar='URL',
            help='broker, such as rabbit://user:password@host:5672/; two '
                 'worker processes then run the pings. Default: the members '
                 'run them')
        parser.add_argument(
            '--connection', default='', metavar='URL',
            help='database for the claims, such as postgresql://user:'
                 'password@host/name, with the tables that "distperiodic db '
                 'sync" creates. Default: SQLite in a temporary directory')
        parser.add_argument(
            '--seconds', type=configured.seconds, default=55.0, metavar='S',
            help='duration in seconds, 30 to 3600. Default: 55')
        parser.add_argument(
            '--members', type=configured.positive, default=3, metavar='N',
            help='members at the beginning, 2 to 12. Default: 3')
        parser.add_argument(
            '--objects', type=configured.positive, default=200, metavar='M',
            help='hosts to ping, up to 5000. Default: 200')
        parser.add_argument(
            '--plain', action='store_true',
            help='show no picture below the lines; this is the default if the '
                 'output is not a terminal')

    def take_action(self, parsed: argparse.Namespace) -> int:
        for name, least, most in (('seconds', 30, 3600), ('members', 2, 12),
                                  ('objects', 1, 5000)):
            value = getattr(parsed, name)
            if not least <= value <= most:
                raise exceptions.ConfigError(
                    f'--{name} {value:g} cannot be used; give {least} to '
                    f'{most}')
        from rich.console import Console
        from rich.live import Live

        from distperiodic.demo import picture
        from distperiodic.demo.scene import Scene
        console = Console(file=self.app.stdout, highlight=False)
        lines = parsed.plain or not console.is_terminal
        try:
            with (contextlib.nullcontext() if lines else Live(
                    console=console, auto_refresh=False)) as live:
                scene = Scene(
                    console, live, seconds=parsed.seconds,
                    members=parsed.members, hosts=parsed.objects,
                    urls=self._urls(parsed))
                scene.perform()
        except KeyboardInterrupt:
            print('distperiodic: interrupted; all processes of the demo have '
                  'ended', file=self.app.stderr)
            return 130
        picture.print_summary(scene, console)
        if scene.failed:
            raise exceptions.DistperiodicError(
                f'{configured.listed(scene.failed)} did not end cleanly; the '
                'last line of the log is above the summary')
        return 0

    def _urls(self, parsed: argparse.Namespace) -> tuple[str, str, str]:
        """Return the URLs of the coordination service, the broker and the
        database.

        Only configuration files that the command line names are read, so that
        a demo does not use the servers in /etc/distperiodic by accident.
        """
        backend_url, transport_url = parsed.backend_url, parsed.transport_url
        connection = parsed.connection
        if parsed.config_file or parsed.config_dir:
            from distperiodic import opts
            from distperiodic.adapters.messaging import drivers
            conf = configuration(parsed)
            settings = opts.settings(conf)
            backend_url = backend_url or settings.backend_url
            connection = connection or settings.connection
            if settings.dispatcher == 'messaging':
                transport_url = transport_url or drivers.url_of(conf)
        return backend_url, transport_url, connection
