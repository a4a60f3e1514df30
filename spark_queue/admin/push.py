"""Push lines of text or JSON as messages of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from spark_queue.admin.common import STEP
from spark_queue.errors import MessageError, OptionError, UsageError, did_you_mean, plural
from spark_queue.messages.columns import headers_array
from spark_queue.messages.ids import new_id_array
from spark_queue.messages.json_text import dump_json, load_json
from spark_queue.messages.payload import Json, from_json
from spark_queue.messages.rules import validate_rows
from spark_queue.messages.schema import PUSHES
from spark_queue.messages.times import MAX_DURATION_MS, MAX_TIME_MS
from spark_queue.messages.value_errors import check_id_and_headers
from spark_queue.options.arguments import check_seconds
from spark_queue.stores import open_store
from spark_queue.stores.base import Store

#: The content of a line: a payload in JSON, a payload of plain text, or a whole message.
LineForm = Literal["json", "text", "message"]

#: The fields of a whole message, and those that are ignored: messages read from a queue or its
#: history have them.
_MESSAGE_FIELDS = ("id", "payload", "headers", "mature", "delay", "tries")
_IGNORED_FIELDS = ("queue", "pushed", "processed", "consumer", "outcome", "error")


@dataclass(frozen=True, slots=True)
class MessageDefaults:
    """Defaults for all messages of a push; the fields of a message take precedence.

    Set `mature`, or `delay` in seconds from the database's now, not both. Raises `MessageError` for
    headers that are not text.
    """

    headers: dict[str, str] | None = None
    mature: datetime | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        check_id_and_headers(None, self.headers)


def push(
    url: str,
    queue: str,
    lines: Iterable[Sequence[bytes]],
    form: LineForm = "json",
    defaults: MessageDefaults | None = None,
    *,
    front: bool = False,
    progress: Callable[[list[str]], None] | None = None,
) -> int:
    """Push one message per line, and return their number. Blank lines are skipped.

    `lines` yields batches of lines. A batch becomes visible when it is pushed, in one step if the
    database is atomic. A message whose id the queue already holds is counted, but not pushed again.
    `front` puts the messages before all others; only the layout `rfq` can do that. `progress` gets
    the ids of each batch after its push.

    Raises `MessageError` with the number of the first invalid line, from 1. The batches before it
    are pushed then, and nothing of its own batch. Raises `OptionError` for an invalid `mature` or
    `delay`, and `UsageError` if the layout cannot push to the front.
    """
    defaults = defaults or MessageDefaults()
    if defaults.mature is not None and defaults.delay is not None:
        raise OptionError("give either mature or delay, not both", option="mature")
    if defaults.delay is not None:
        check_seconds("delay", defaults.delay)
    with open_store(url) as store:
        store.check_queue(queue)
        if front:
            if not hasattr(store, "front"):
                raise UsageError("only the layout rfq can push to the front: leave --front out, or use --layout rfq")
            store.front = True
        pushed = 0
        for numbered in _number_lines(lines):
            for start in range(0, len(numbered), STEP):
                step = numbered[start : start + STEP]
                with _name_line(step, pushed):
                    batch = _lines_to_batch(step, form, defaults, store)
                    store.push(queue, batch)
                pushed += len(step)
                if progress is not None:
                    progress(batch.column("id").to_pylist())
        return pushed


def check_lines(
    lines: Iterable[Sequence[bytes]], form: LineForm = "json", defaults: MessageDefaults | None = None
) -> None:
    """Raise `MessageError` for the first invalid line, as far as a check without a store can."""
    for numbered in _number_lines(lines):
        with _name_line(numbered, 0):
            batch = _lines_to_batch(numbered, form, defaults or MessageDefaults())
            if rules := validate_rows(batch, MAX_TIME_MS):
                raise MessageError(rows=rules)


def _number_lines(lines: Iterable[Sequence[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield each batch of lines, without blank ones, with the numbers of the lines from 1."""
    before = 0
    for chunk in lines:
        yield [(before + place, line) for place, line in enumerate(chunk, 1) if line.strip()]
        before += len(chunk)


@contextmanager
def _name_line(lines: Sequence[tuple[int, bytes]], pushed: int) -> Iterator[None]:
    """Convert a `MessageError` about rows: it names the first invalid line.

    `pushed`: the number of messages that were pushed before. Raises `MessageError`.
    """
    try:
        yield
    except MessageError as error:
        row, rule = next(iter(error.rows.items()))
        number = lines[row][0]
        before = f"{plural(pushed, 'message')} before it pushed already" if pushed else "nothing was pushed"
        raise MessageError(f"line {number}: {rule}; {before}", line=number, pushed=pushed) from error


def _lines_to_batch(
    lines: Sequence[tuple[int, bytes]], form: LineForm, defaults: MessageDefaults, store: Store | None = None
) -> pa.RecordBatch:
    """Convert lines to a PUSHES batch. Raises `MessageError`; its `rows` has the invalid lines."""
    if form == "message":
        values = []
        for row, (_, line) in enumerate(lines):
            try:
                values.append(load_json(line))
            except ValueError as error:
                raise MessageError(rows={row: f"it is not JSON ({error})"}) from None
        return messages_to_batch(values, defaults, store)
    n = len(lines)
    if form == "json":
        payloads, kinds = from_json(pa.array([line.strip() for _, line in lines], pa.binary()))
    else:
        payloads, kinds = pa.array([line.rstrip(b"\r\n") for _, line in lines], pa.binary()), pa.repeat("text", n)
    columns = {
        "id": _make_ids(store, n),
        "payload": payloads,
        "payload_kind": kinds,
        "headers": headers_array([defaults.headers or {}] * n),
        "mature": [defaults.mature] * n,
        "delay": [None if defaults.delay is None else round(defaults.delay * 1000)] * n,
        "tries": [0] * n,
    }
    return pa.RecordBatch.from_pydict(columns, schema=PUSHES)


def messages_to_batch(
    values: Sequence[Json], defaults: MessageDefaults | None = None, store: Store | None = None
) -> pa.RecordBatch:
    """Convert whole messages, as `pop --json` prints them, to a PUSHES batch.

    Messages without an id get one in the form of the store. Raises `MessageError`; its `rows` maps
    the position of each invalid message to the rule that it breaks.
    """
    rows, errors = [], {}
    for number, value in enumerate(values):
        try:
            rows.append(_parse_message(value, defaults or MessageDefaults()))
        except (MessageError, ValueError, OverflowError) as error:
            errors[number] = str(error)
    if errors:
        number, rule = next(iter(errors.items()))
        raise MessageError(f"message {number}: {rule}; nothing was pushed", rows=errors)
    columns = {name: [row[name] for row in rows] for name in _MESSAGE_FIELDS}
    new_ids = _make_ids(store, len(rows))
    columns["id"] = [new if id is None else id for id, new in zip(columns["id"], new_ids, strict=True)]
    columns["payload"], columns["payload_kind"] = from_json(pa.array(columns["payload"], pa.binary()))
    columns["headers"] = headers_array(columns["headers"])
    return pa.RecordBatch.from_pydict(columns, schema=PUSHES)


def _make_ids(store: Store | None, n: int) -> list[str]:
    """Return `n` new ids, in the form of the store's layout if there is a store."""
    made = new_id_array(n)
    ids: list[str] = (made if store is None else store.native_ids(made)).to_pylist()
    return ids


def _parse_message(value: Json, defaults: MessageDefaults) -> dict[str, Any]:
    """Return the fields of a whole message. Raises `ValueError` with the rule that it breaks."""
    if not isinstance(value, dict) or "payload" not in value:
        raise ValueError(
            'it is not a message: write {"payload": …}, and optionally '
            + ", ".join(_MESSAGE_FIELDS[:1] + _MESSAGE_FIELDS[2:])
        )
    if unknown := value.keys() - {*_MESSAGE_FIELDS, *_IGNORED_FIELDS}:
        raise ValueError(f"a message has no field {min(unknown)!r}{did_you_mean(min(unknown), _MESSAGE_FIELDS)}")
    id, headers, tries = value.get("id"), value.get("headers"), value.get("tries", 0)
    if id is not None and not isinstance(id, str):
        raise ValueError("its id must be text")
    if headers is not None and not (
        isinstance(headers, dict) and all(isinstance(one, str) for one in headers.values())
    ):
        raise ValueError("its headers must be an object of text values")
    if not isinstance(tries, int) or isinstance(tries, bool) or not 0 <= tries < 1 << 31:
        raise ValueError("its tries must be a whole number, 0 or more")
    mature, delay = value.get("mature"), value.get("delay")
    if mature is None and delay is None:
        mature, delay = defaults.mature, defaults.delay
    if mature is not None and not isinstance(mature, datetime):
        mature = datetime.fromisoformat(str(mature))
        if mature.tzinfo is None:
            raise ValueError("its mature has no time zone: write 2026-01-31T12:00Z")
    if delay is not None and (
        isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) <= MAX_DURATION_MS / 1000
    ):
        raise ValueError("its delay must be a number of seconds that ends before the year 5000")
    check_id_and_headers(id, headers)
    return {
        "id": id,
        "payload": dump_json(value["payload"]),
        "headers": (defaults.headers or {}) | (headers or {}),
        "mature": mature,
        "delay": None if delay is None else round(delay * 1000),
        "tries": tries,
    }
