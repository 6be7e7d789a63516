# SPDX-License-Identifier: Apache-2.0
"""Options of a service without a configuration file."""

from oslo_config import cfg

from distperiodic import opts


def configuration(**options):
    """Return default options, with *options* set in the group [distperiodic].
    """
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        conf.set_override(name, value, opts.GROUP)
    return conf
