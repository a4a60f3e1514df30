"""Errors for Python values that cannot become messages: payloads, ids, headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from datetime import datetime
from itertools import chain
from typing import Any

from spark_queue.errors import MessageError, OptionError, plural
from spark_queue.messages.json_text import HALF_SURROGATE, find_json_faults, is_text, type_name
from spark_queue.messages.times import MAX_DURATION_MS


def error_for_values(
    queue: str, payloads: Sequence[Any], columns: Mapping[str, Any], error: Exception
) -> MessageError | OptionError:
    """Return the error for values that cannot become messages.

    `columns` has the other arguments by name: one value for all messages, or a sequence with one
    for each. `error` is named if no value is found to be wrong. `queue` may be empty.
    """
    for name, value in columns.items():
        is_sequence = isinstance(value, Sized) and not isinstance(value, str | bytes | Mapping)
        if is_sequence and len(value) != len(payloads):
            pairs = f"{plural(len(value), 'value')} for {plural(len(payloads), 'payload')}"
            return OptionError(f"{name} has {pairs}: give one for each, or one for all", option=name)
    broken: dict[int, str] = {}
    for row, payload in enumerate(payloads):
        given = {name: _value_of_row(value, row) for name, value in columns.items()}
        faults = chain(_find_payload_faults(payload), _find_column_faults(given))
        if fault := next(faults, None):
            broken[row] = fault
    if not broken:
        return MessageError(f"{_location(queue)}{error}; nothing was pushed", queue=queue)
    return error_for_rows(queue, broken, len(payloads))


def check_id_and_headers(id: object, headers: object) -> None:
    """Raise `MessageError` if an id or headers are not text; `None` is allowed."""
    check_fields(ids=id, headers=headers)


def check_fields(**fields: object) -> None:
    """Raise `MessageError` if one of `ids`, `headers`, `mature`, `tries` and `delay` (s) is wrong.

    Each is that of one message; `None` is allowed.
    """
    if fault := next(_find_column_faults(fields), None):
        raise MessageError(fault)


def error_for_rows(queue: str, broken: Mapping[int, str], rows: int) -> MessageError:
    """Return the error for messages that break rules. It names the first and counts the others."""
    row, rule = next(iter(broken.items()))
    place = f"message {row + 1} of {rows:,}" if rows > 1 else ""
    rest = f" (and {plural(len(broken) - 1, 'more message')})" if len(broken) > 1 else ""
    return MessageError(f"{_location(queue, place)}{rule}{rest}; nothing was pushed", rows=broken, queue=queue)


def _location(queue: str, place: str = "") -> str:
    """Return the beginning of an error: the queue and the place in it, if they are known."""
    places = [one for one in (queue and f"queue {queue!r}", place) if one]
    return f"{', '.join(places)}: " if places else ""


def _value_of_row(value: Any, row: int) -> Any:
    return value[row] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _find_payload_faults(payload: Any) -> Iterator[str]:
    if not isinstance(payload, bytes | bytearray | memoryview):
        yield from find_json_faults(payload)


def _find_column_faults(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mistakes in the other columns of a message."""
    ids, headers, mature, tries, delay = map(given.get, ("ids", "headers", "mature", "tries", "delay"))
    if ids is not None and not is_text(ids):
        yield (
            f"id: {HALF_SURROGATE}" if isinstance(ids, str) else f"id must be text, not {type_name(ids)}; use str(…)"
        )
    if headers is not None and not isinstance(headers, Mapping):
        yield f"headers must be a dict of text, not {type_name(headers)}"
    elif headers is not None:
        yield from _find_header_faults(headers)
    if mature is not None and not isinstance(mature, datetime):
        yield f"mature must be a datetime with a time zone, not {type_name(mature)}"
    if tries is not None and not (isinstance(tries, int) and -(2**31) <= tries < 2**31):
        is_long = isinstance(tries, int) and abs(tries) >= 10**30  # Python may refuse to write its digits
        yield f"tries must be a whole number below 2147483648, not {'a longer one' if is_long else repr(tries)}"
    if delay is not None and not (isinstance(delay, int | float) and abs(delay) <= MAX_DURATION_MS / 1000):
        yield "delay must be a number of seconds that end before the year 5000"


def _find_header_faults(headers: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in headers.items():
        if not isinstance(key, str):
            yield f"headers: the key {key!r} is {type_name(key)}, and names of headers are text; use str(…)"
        elif not is_text(key):
            yield f"headers: the key {key!r}: {HALF_SURROGATE}"
        elif isinstance(value, str) and not is_text(value):
            yield f"headers.{key}: {HALF_SURROGATE}"
        elif value is not None and not isinstance(value, str):
            yield f"headers.{key}: {type_name(value)} must be text; use str(…)"
