# SPDX-License-Identifier: Apache-2.0
"""The store of a configuration, before its first use."""

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts


def check_store(settings: opts.Settings, conf: cfg.ConfigOpts) -> None:
    """Check that the store has its tables; create an embedded store.

    :param conf: the configuration that *settings* were read from.
    :raises ConfigError: the store cannot be used as it is.
    :raises StoreUnavailable: the store does not answer.
    """
    if not settings.connection:
        return
    from distperiodic.adapters.sql import schema
    if settings.embedded:
        schema.create_file(settings.connection, settings.store_file)
    try:
        schema.check(settings.connection)
    except exceptions.SchemaError as exc:
        text = str(exc)
        if text.endswith('distperiodic db sync'):
            # Without these files "db sync" would create the tables elsewhere.
            text += ''.join(f' --config-file {path}'
                            for path in opts.files(conf))
        if not conf[opts.GROUP].connection:
            text += (
                '; this is the database of [database] connection; set '
                '[distperiodic] connection to use another one, or set it to '
                'none to run without a store')
        raise exceptions.SchemaError(text) from None
