# SPDX-License-Identifier: Apache-2.0
"""The options of the service, beside those of distperiodic."""

from oslo_config import cfg
from oslo_log import log

GROUP = 'nodewatch'

OPTS = [
    cfg.StrOpt('inventory', default='/etc/nodewatch/nodes.json',
               help='File that lists the nodes. It is read at each tick, so '
                    'a node that is added is polled at the next one.'),
    cfg.IntOpt('conductors', default=1, min=1,
               help='Conductor processes on this host.'),
    cfg.IntOpt('workers', default=1, min=1,
               help='Worker processes on this host.'),
]


def load(argv):
    """The configuration, read once by each command.

    :param argv: the command line, without the name of the program.
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
