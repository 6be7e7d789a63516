# SPDX-License-Identifier: Apache-2.0
"""The options of the service, other than those of distperiodic."""

from oslo_config import cfg
from oslo_log import log

GROUP = 'nodewatch'

OPTS = [
    cfg.StrOpt('inventory', default='/etc/nodewatch/nodes.json',
               help='File that lists the nodes. It is read at each tick, so '
                    'a new node is polled at the next tick.'),
    cfg.FloatOpt('poll_interval', default=4.0,
                 help='Seconds between polls of a node that has no spacing of '
                      'its own. -1 disables the polls. Must be the same in '
                      'all processes.'),
    cfg.IntOpt('conductors', default=1, min=1,
               help='Number of conductor processes on this host.'),
    cfg.IntOpt('workers', default=1, min=1,
               help='Number of worker processes on this host.'),
]


def load(argv):
    """Read the configuration files, and set up logging.

    :param argv: Command line, without the name of the program.
    :returns: The configuration.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTS, group=GROUP)
    log.register_options(conf)
    # kazoo logs each connection; distperiodic logs the consequences.
    log.set_defaults(default_log_levels=[
        *log.get_default_log_levels(), 'kazoo=WARN'])
    conf(argv, project='nodewatch')
    log.setup(conf, 'nodewatch')
    return conf
