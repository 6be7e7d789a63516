# SPDX-License-Identifier: Apache-2.0
"""Options of a service that has no file of its own."""

from oslo_config import cfg

from distperiodic import opts


def configuration(**options):
    """Options of the group [distperiodic]; the others have their defaults."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        conf.set_override(name, value, opts.GROUP)
    return conf
