"""What is wrong with a call of the client, and what to write instead: names of arguments, and values of messages."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from spark_queue.errors import MessageError, OptionError, near
from spark_queue.masking import quoted
from spark_queue.message import dump_json
from spark_queue.words import plural

P = ParamSpec("P")
T = TypeVar("T")

#: What other queues, and the options of Spark, call arguments of the client.
_ELSEWHERE = {
    "countdown": "delay", "delay_seconds": "delay", "eta": "mature", "when": "mature", "metadata": "headers",
    "attributes": "headers", "message_id": "id", "reserve_timeout": "lease", "visibility_timeout": "lease",
    "retries": "max_tries", "max_retries": "max_tries", "attempts": "tries", "dead": "dead_letter_queue",
    "dlq": "dead_letter_queue", "name": "queue", "wait": "timeout", "wait_timeout": "timeout", "block": "timeout",
    "count": "limit", "n": "limit", "max_messages": "limit", "batch_size": "prefetch", "error": "reason",
}  # fmt: skip

#: Types that JSON has no form for, and what to do.
_REMEDIES = {
    "set": "use a list", "frozenset": "use a list", "generator": "use a list", "bytes": "encode it as text (base64)",
    "bytearray": "encode it as text (base64)", "Decimal": "use str(…) or float(…)",
    "timedelta": "use .total_seconds()", "ndarray": "use .tolist()", "Timestamp": "use .isoformat()",
    "DataFrame": "use .to_dict('records')", "complex": "use a list of two numbers",
}  # fmt: skip

#: Levels of a payload that are looked at: one that is deeper, or contains itself, is refused.
_DEEP = 250


# --- names of arguments ---------------------------------------------------------------------------------------------


def keywords_checked(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise `OptionError` for a keyword argument that it does not have, with the nearest name."""
    known = frozenset(signature(function).parameters) - {"self"}
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        if not known.issuperset(keywords):
            odd = next(key for key in keywords if key not in known)
            raise OptionError(f"{name}() has no argument {odd!r}{_hint(odd, known)}", option=odd)
        return function(*args, **keywords)

    return checked


def _hint(odd: str, known: frozenset[str]) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", odd).lower()
    meant = snake if snake in known else _ELSEWHERE.get(snake, "")
    if meant in known:
        return f"; did you mean {meant!r}?"
    return near(snake, known) or f"; it has {', '.join(sorted(known))}"


def check_seconds(name: str, value: object, *, least: float = 0.0) -> None:
    """Raise `OptionError` for an argument that is not a number of seconds from `least` on."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf
    if not sound:
        shown = quoted(value) if isinstance(value, str) else repr(value)
        hint = "; use .total_seconds()" if type(value).__name__ == "timedelta" else ""
        raise OptionError(f"{name} must be a number of seconds, {least:g} or more, not {shown}{hint}", option=name)


def check_count(name: str, value: object) -> None:
    """Raise `OptionError` for an argument that is not a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = quoted(value) if isinstance(value, str) else repr(value)
        raise OptionError(f"{name} must be a whole number, 1 or more, not {shown}", option=name)


# --- values of messages ---------------------------------------------------------------------------------------------


def unfit(
    queue: str,
    payloads: Sequence[Any],
    columns: Mapping[str, Any],
    error: Exception,
) -> MessageError | OptionError:
    """Return the error for messages that could not be made of these values.

    `columns`: what else was given for them, by argument: one value for all, or a sequence with one for each.
    """
    for name, value in columns.items():
        if not isinstance(value, str | bytes | Mapping | int | datetime | None) and len(value) != len(payloads):
            pairs = f"{plural(len(value), 'value')} for {plural(len(payloads), 'payload')}"
            return OptionError(f"{name} has {pairs}: give one for each, or one for all", option=name)
    wrong: dict[int, str] = {}
    for row, payload in enumerate(payloads):
        given = {name: _of_row(value, row) for name, value in columns.items()}
        found = next(_faults_of_payload(payload), None) or next(_faults_of_columns(given), None)
        if found:
            wrong[row] = found
    if not wrong:
        return MessageError(f"queue {queue!r}: {error}; nothing was pushed", queue=queue)
    return refused(queue, wrong, len(payloads))


def refused(queue: str, wrong: Mapping[int, str], rows: int) -> MessageError:
    """Return the error for messages that break rules: it names the first, and counts the others."""
    row, rule = next(iter(wrong.items()))
    place = f", message {row + 1} of {rows:,}" if rows > 1 else ""
    rest = f" (and {plural(len(wrong) - 1, 'more message')})" if len(wrong) > 1 else ""
    return MessageError(f"queue {queue!r}{place}: {rule}{rest}; nothing was pushed", rows=wrong, queue=queue)


def _of_row(value: Any, row: int) -> Any:
    return value[row] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _faults_of_payload(payload: Any) -> Iterator[str]:
    if isinstance(payload, str):
        if not _is_text(payload):
            yield f"payload: {_SURROGATE}"
    elif not isinstance(payload, bytes | bytearray | memoryview) and not _fits(payload):
        yield from _faults_of_json(payload, "payload", _DEEP)


_SURROGATE = "text with half a surrogate pair is not Unicode; clean it with .encode('utf-8', 'replace')"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Any) -> bool:
    try:
        dump_json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _faults_of_json(value: Any, place: str, deep: int) -> Iterator[str]:
    """Yield the parts of a value that JSON cannot hold, with their places."""
    if not deep:
        yield f"{place[:60]}…: is nested more than {_DEEP} levels deep, or contains itself"
    elif isinstance(value, Mapping) and isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                yield f"{place}: the key {key!r} is {_type(key)}, and keys of JSON are text; use str(…)"
            elif not _fits(one):
                yield from _faults_of_json(one, f"{place}.{key}", deep - 1)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            if not _fits(one):
                yield from _faults_of_json(one, f"{place}[{number}]", deep - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if not _fits(one := getattr(value, field.name)):
                yield from _faults_of_json(one, f"{place}.{field.name}", deep - 1)
    elif isinstance(value, float):
        yield f"{place}: {value} has no form in JSON; use None or text"
    elif isinstance(value, str):
        yield f"{place}: {_SURROGATE}"
    else:
        yield f"{place}: {_type(value)} has no form in JSON; {_remedy(value)}"


def _type(value: object) -> str:
    return type(value).__name__


def _remedy(value: object) -> str:
    if remedy := _REMEDIES.get(_type(value)):
        return remedy
    if hasattr(value, "item") and type(value).__module__ == "numpy":
        return "use .item()"
    return "use text, a number, a list or a dict"


def _faults_of_columns(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong beside the payload of a message."""
    ids, headers, mature, tries = (given.get(name) for name in ("ids", "headers", "mature", "tries"))
    if ids is not None and not (isinstance(ids, str) and _is_text(ids)):
        yield f"id must be text, not {_type(ids)}; use str(…)"
    if headers is not None and not isinstance(headers, Mapping):
        yield f"headers must be a dict of text, not {_type(headers)}"
    elif headers is not None:
        for key, value in headers.items():
            if not isinstance(key, str):
                yield f"headers: the key {key!r} is {_type(key)}, and names of headers are text; use str(…)"
            elif value is not None and not (isinstance(value, str) and _is_text(value)):
                yield f"headers.{key}: {_type(value)} must be text; use str(…)"
    if mature is not None and not isinstance(mature, datetime):
        yield f"mature must be a datetime with a time zone, not {_type(mature)}"
    if tries is not None and not (isinstance(tries, int) and -(2**31) <= tries < 2**31):
        yield f"tries must be a whole number below 2147483648, not {tries!r}"
