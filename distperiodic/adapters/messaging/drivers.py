# SPDX-License-Identifier: Apache-2.0
"""The installed kinds of message buses, selected by the scheme of a URL.

Each kind is a plug-in: an entry point in the namespace ``distperiodic.bus``.
The name of the entry point is the scheme, and its object is a class that
implements :class:`distperiodic.ports.BusDriver`. When a bus starts, this
module loads the plug-in for the URL. The module itself imports no client of
any broker.
"""

from importlib import metadata
from typing import Any

import stevedore
from oslo_config import cfg

from distperiodic import ports
from distperiodic.core.partition import Partition
from distperiodic.core.partition import Partitions
from distperiodic.exceptions import ConfigError

#: Namespace of the entry points.
NAMESPACE = 'distperiodic.bus'
#: Example of a URL, for error messages.
EXAMPLE = 'rabbit://user:password@broker:5672/vhost'
#: Command that gives a RabbitMQ user the rights that a process needs.
RABBIT_RIGHTS = ('rabbitmqctl set_permissions -p VHOST USER '
                 + ' '.join([r"'^distperiodic($|\.)'"] * 3))


def url_of(conf: Any) -> str:
    """Return ``[DEFAULT] transport_url``, including passwords.

    :raises ConfigError: The value refers to an option that does not exist.
    """
    # This import fixes the backend of oslo.service, so import it late.
    import oslo_messaging
    # Creating a TransportURL registers the option.
    oslo_messaging.TransportURL(conf)
    try:
        url: str = conf.transport_url
    except cfg.NoSuchOptError:
        # The text of the error may be a part of a password.
        raise ConfigError(
            '[DEFAULT] transport_url: a "$" in the value begins the name of '
            'an option that does not exist; write "$$" for each "$"'
        ) from None
    return url


def driver_of(url: str) -> ports.BusDriver:
    """Return the driver for *url*.

    :raises ConfigError: The URL has no scheme, no plug-in has that name, or
        the plug-in cannot be loaded.
    """
    scheme, separator, _ = url.partition('://')
    if not separator:
        raise ConfigError(
            f'transport_url {masked(url)} does not begin with a driver; it '
            f'should look like {EXAMPLE}')
    # The driver interprets the rest of the scheme, as in kombu+memory.
    name = scheme.partition('+')[0].lower()
    failures: list[tuple[Any, BaseException]] = []
    found: Any = stevedore.NamedExtensionManager(
        NAMESPACE, [name], invoke_on_load=True,
        on_missing_entrypoints_callback=lambda missing: None,
        on_load_failure_callback=lambda _, entry, error: (
            failures.append((entry, error))))
    if failures:
        raise _not_loaded(url, *failures[0]) from None
    if len(found.extensions) > 1:
        raise ConfigError(
            f'transport_url {masked(url)}: {len(found.extensions)} installed '
            f'packages have a bus {name!r}; uninstall all but one of them')
    if not found.extensions:
        raise ConfigError(
            f'transport_url {masked(url)} names {name!r}, but no bus of that '
            f'name is installed; the installed ones are {", ".join(names())}; '
            'correct transport_url, or install the package of the plug-in')
    driver: ports.BusDriver = found.extensions[0].obj
    return driver


def _not_loaded(url: str, entry: Any, error: BaseException) -> ConfigError:
    reason = ' '.join(str(error).split()) or type(error).__name__
    # The entry points that stevedore returns do not name their packages.
    package = next((found.dist.name for found in metadata.entry_points(
        group=NAMESPACE, name=entry.name) if found.dist), entry.module)
    extras = f'[{",".join(entry.extras)}]' if entry.extras else ''
    return ConfigError(
        f'transport_url {masked(url)} needs the bus {entry.name!r}, which '
        f'cannot be loaded ({reason}); run pip install '
        f"'{package}{extras}'")


def is_within_process(url: str) -> bool:
    """Return whether *url* names the bus that works only within a process."""
    return url.partition(':')[0].lower() == 'fake'


def check_standby(conf: Any, partition: Partition) -> None:
    """Check that all workers of a standby partition can reach its broker.

    :raises ConfigError: The URL of the broker names the bus that works in one
        process only.
    """
    url = partition.transport_url or url_of(conf)
    if is_within_process(url):
        raise ConfigError(
            f'[partition:{partition.name}] mode = standby needs a broker that '
            f'its other workers reach, but transport_url = {masked(url)} is a '
            'bus within one process; set transport_url to a broker, as in '
            f'{EXAMPLE}, or remove mode')


def names() -> list[str]:
    """Return the names of the installed kinds of buses."""
    # A manager with an empty selection loads no plug-ins.
    found: Any = stevedore.NamedExtensionManager(NAMESPACE, [])
    return sorted({entry.name for entry in found.list_entry_points()})


def probe(conf: Any, url: str | None = None) -> ports.BrokerProbe:
    """Return a probe of the broker that *url* names.

    :param url: None means ``[DEFAULT] transport_url`` of *conf*.
    :raises ConfigError: The URL is invalid.
    """
    found = url or url_of(conf)
    return driver_of(found).probe(conf, found)


def probes(conf: Any, partitions: Partitions) -> dict[str, ports.BrokerProbe]:
    """Return a probe for each partition that has a broker of its own.

    The probe of the main broker has the key ''. Equal URLs share a probe.

    :raises ConfigError: A URL is invalid.
    """
    main = url_of(conf)
    found = {main: probe(conf, main)}
    result = {'': found[main]}
    for name, partition in sorted(partitions.items()):
        url = partition.transport_url
        if not url:
            continue
        if url not in found:
            try:
                found[url] = probe(conf, url)
            except ConfigError as exc:
                raise ConfigError(f'[partition:{name}] {exc}') from None
        result[name] = found[url]
    return result


def masked(url: str) -> str:
    """Return *url* without its query and its credentials.

    Everything from '//' to the last '@' counts as credentials. The result for
    a text that is not a URL is '***'.
    """
    scheme, separator, rest = url.partition('://')
    if not separator:
        return '***'
    return f'{scheme}://{"***@" if "@" in rest else ""}' + rest.rpartition(
        '@')[2].partition('?')[0]
