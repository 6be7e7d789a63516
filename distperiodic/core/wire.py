# SPDX-License-Identifier: Apache-2.0
"""Checks and signatures that all kinds of messages share.

A message is a flat JSON object with lists. If a check fails, it raises
InvalidMessage. Values may be secret, so the error states only the kind or the
length of an invalid value. Only unknown words, such as the names of unknown
fields, are quoted in part.
"""

import hashlib
import hmac
import json
import math
import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.exceptions import InvalidMessage

VERSION = 1

#: Maximum number of characters of a name, such as the name of a job or of a
#: membership entry.
MAX_NAME = 512
#: Maximum of a fence, of the number of an attempt and of a number of seconds.
MAX_INT = 2 ** 63 - 1
#: First instant that a datetime can represent, in the year 1.
FIRST_INSTANT = -62_135_596_800_000_000

_MAC = re.compile(r'[0-9a-f]{64}\Z')

#: Secret that signs messages.
Key = str | bytes


def check_fields(message: Mapping[str, Any], fields: frozenset[str],
                 optional: frozenset[str] = frozenset()) -> None:
    """Check that *message* has exactly these fields.

    :param optional: Fields that the message may also have.
    """
    if message.keys() - optional != fields:
        missing = sorted(fields - message.keys())
        unknown = [shown(k) for k in message
                   if k not in fields and k not in optional][:3]
        raise InvalidMessage(
            f'fields missing: {", ".join(missing) or "none"}; fields unknown: '
            f'{", ".join(unknown) or "none"}')


def check_list(field: str, values: Any, kind: type) -> None:
    """Check that *values* is a list of this kind."""
    if type(values) is not list:
        raise InvalidMessage(f'{field} is {kind_of(values)}, not a list')
    # Compare the exact types, because isinstance() accepts True as an int. The
    # comparison of sets is fast, because it runs in C.
    if values and set(map(type, values)) != {kind}:
        strange = next(v for v in values if type(v) is not kind)
        raise InvalidMessage(
            f'{field} holds {kind_of(strange)}, not only {_KINDS[kind]}')


def check_int(field: str, value: Any, least: int, most: int) -> None:
    """Check that *value* is an integer in this range."""
    if type(value) is not int:
        raise InvalidMessage(f'{field} is {kind_of(value)}, not an integer')
    if not least <= value <= most:
        raise InvalidMessage(f'{field} is outside {least} to {most}')


def check_name(field: str, value: Any) -> None:
    """Check that *value* is text of 1 to :data:`MAX_NAME` characters."""
    if type(value) is not str:
        raise InvalidMessage(f'{field} is {kind_of(value)}, not text')
    if not 0 < len(value) <= MAX_NAME:
        raise InvalidMessage(
            f'{field} has {len(value)} characters; it must have 1 to '
            f'{MAX_NAME}')
    check_text(field, value)


def check_text(field: str, text: str) -> None:
    """Check that *text* is valid Unicode."""
    # JSON can contain half of a surrogate pair. Neither a log nor a database
    # can store such a character.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidMessage(
                f'{field} holds invalid Unicode ({exc.reason})') from None


def clean(reason: str, room: int) -> str:
    """Truncate *reason* to *room* characters; escape invalid characters."""
    text = str(reason)[:room]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors='backslashreplace').decode()[:room]
    return text


_KINDS = {str: 'text', int: 'an integer', list: 'a list', dict: 'an object',
          float: 'a float', bool: 'true or false', type(None): 'nothing'}


def kind_of(value: Any) -> str:
    """Return the kind of *value*, without the value, which may be secret."""
    if type(value) is float and not math.isfinite(value):
        return str(value)
    return _KINDS.get(type(value), type(value).__name__)


def shown(word: Any) -> str:
    """Return the first characters of a text, or the kind of another value."""
    return f'{word[:40]!r:.40}' if type(word) is str else kind_of(word)


def _mac(message: Mapping[str, Any], key: Key) -> str:
    text = json.dumps(message, sort_keys=True, separators=(',', ':'),
                      allow_nan=False)
    secret = key.encode() if isinstance(key, str) else key
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def sign(message: dict[str, Any], keys: Sequence[Key]) -> dict[str, Any]:
    """Sign *message* with the first key, and return the message.

    Without keys, the message is returned unsigned.
    """
    if keys:
        message['mac'] = _mac(message, keys[0])
    return message


def verify(message: Mapping[str, Any], mac: Any,
           keys: Collection[Key]) -> None:
    """Check that one of *keys* has signed *message*.

    :param mac: The signature, which is not part of *message*.
    :raises InvalidMessage: No key has signed the message.
    """
    if mac is None:
        raise InvalidMessage(
            'the message is not signed, but this process has signing keys; '
            'configure them on both sides')
    if type(mac) is not str or not _MAC.match(mac):
        raise InvalidMessage('mac is not a signature')
    # Compare all keys, so that the duration does not reveal which key matches.
    matches = [hmac.compare_digest(_mac(message, key), mac) for key in keys]
    if not any(matches):
        raise InvalidMessage('wrong signature: no configured key matches')
