"""Errors for Python values that cannot become messages: payloads, ids, headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

from spark_queue.errors import MessageError, OptionError, plural
from spark_queue.messages.json_text import HALF, faults_of_json, is_text, type_of


def unfit(
    queue: str,
    payloads: Sequence[Any],
    columns: Mapping[str, Any],
    error: Exception,
) -> MessageError | OptionError:
    """Return the error for values that cannot become messages.

    `columns` has the other arguments by name: one value for all messages, or a sequence with one
    for each. `error` is named if no value is found to be wrong. `queue` may be empty.
    """
    for name, value in columns.items():
        several = isinstance(value, Sized) and not isinstance(value, str | bytes | Mapping)
        if several and len(value) != len(payloads):
            pairs = f"{plural(len(value), 'value')} for {plural(len(payloads), 'payload')}"
            return OptionError(f"{name} has {pairs}: give one for each, or one for all", option=name)
    wrong: dict[int, str] = {}
    for row, payload in enumerate(payloads):
        given = {name: _of_row(value, row) for name, value in columns.items()}
        found = next(_faults_of_payload(payload), None) or next(_faults_of_columns(given), None)
        if found:
            wrong[row] = found
    if not wrong:
        return MessageError(f"{_at(queue)}{error}; nothing was pushed", queue=queue)
    return refused(queue, wrong, len(payloads))


def check_texts(id: object, headers: object) -> None:
    """Raise `MessageError` if an id or headers are not text; `None` is allowed."""
    if fault := next(_faults_of_columns({"ids": id, "headers": headers}), None):
        raise MessageError(fault)


def refused(queue: str, wrong: Mapping[int, str], rows: int) -> MessageError:
    """Return the error for messages that break rules. It names the first and counts the others."""
    row, rule = next(iter(wrong.items()))
    place = f"message {row + 1} of {rows:,}" if rows > 1 else ""
    rest = f" (and {plural(len(wrong) - 1, 'more message')})" if len(wrong) > 1 else ""
    return MessageError(f"{_at(queue, place)}{rule}{rest}; nothing was pushed", rows=wrong, queue=queue)


def _at(queue: str, place: str = "") -> str:
    """Return the beginning of an error: the queue and the place in it, if they are known."""
    places = [one for one in (queue and f"queue {queue!r}", place) if one]
    return f"{', '.join(places)}: " if places else ""


def _of_row(value: Any, row: int) -> Any:
    return value[row] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _faults_of_payload(payload: Any) -> Iterator[str]:
    if not isinstance(payload, bytes | bytearray | memoryview):
        yield from faults_of_json(payload)


def _faults_of_columns(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mistakes in the other columns of a message."""
    ids, headers, mature, tries = (given.get(name) for name in ("ids", "headers", "mature", "tries"))
    if ids is not None and not is_text(ids):
        yield f"id: {HALF}" if isinstance(ids, str) else f"id must be text, not {type_of(ids)}; use str(…)"
    if headers is not None and not isinstance(headers, Mapping):
        yield f"headers must be a dict of text, not {type_of(headers)}"
    elif headers is not None:
        yield from _faults_of_headers(headers)
    if mature is not None and not isinstance(mature, datetime):
        yield f"mature must be a datetime with a time zone, not {type_of(mature)}"
    if tries is not None and not (isinstance(tries, int) and -(2**31) <= tries < 2**31):
        yield f"tries must be a whole number below 2147483648, not {tries!r}"


def _faults_of_headers(headers: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in headers.items():
        if not isinstance(key, str):
            yield f"headers: the key {key!r} is {type_of(key)}, and names of headers are text; use str(…)"
        elif not is_text(key):
            yield f"headers: the key {key!r}: {HALF}"
        elif isinstance(value, str) and not is_text(value):
            yield f"headers.{key}: {HALF}"
        elif value is not None and not isinstance(value, str):
            yield f"headers.{key}: {type_of(value)} must be text; use str(…)"
