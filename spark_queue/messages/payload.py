"""Payloads: Python values to bytes and back, and what JSON cannot hold."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import MessageError
from spark_queue.messages.json_text import HALF, dump_json, load_foreign_json
from spark_queue.messages.schema import PayloadKind

Json = dict[str, Any] | list[Any] | str | int | float | bool | None


def encode(payload: Json | bytes) -> tuple[bytes, PayloadKind]:
    """Return the bytes and the kind that a Python value is kept as.

    Raises `MessageError` for a value that JSON or UTF-8 cannot hold.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "binary"
    if isinstance(payload, str):
        try:
            return payload.encode(), "text"
        except UnicodeEncodeError as error:
            raise MessageError(f"payload: {HALF}") from error
    return dump_json(payload), "json"


def decode(payload: bytes, kind: str) -> Json | bytes:
    """Return the Python value of a payload: the inverse of `encode`."""
    if kind == "binary":
        return payload
    if kind == "text":
        return payload.decode()
    value: Json = load_foreign_json(payload)
    return value


def as_json(payload: bytes, kind: str) -> bytes:
    """A payload as JSON text: a text becomes a JSON string, bytes become Extended JSON `{"$binary": …}`."""
    if kind == "json":
        return payload
    if kind == "text":
        return orjson.dumps(payload.decode())
    return orjson.dumps({"$binary": {"base64": base64.b64encode(payload).decode(), "subType": "00"}})


def jsonable(value: object) -> object:
    """What JSON has for a value that it has not: moments in ISO format (UTC), bytes in Extended JSON.

    Raises `TypeError` where that is nothing.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return orjson.loads(as_json(value, "binary"))
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def of_json(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The payloads that are meant by JSON texts, and their kinds: the inverse of `as_json`."""
    strings = pc.starts_with(texts, '"')
    marked = pc.fill_null(pc.or_(strings, pc.starts_with(texts, '{"$binary":')), False)
    if not pc.any(marked).as_py():
        return texts, pa.repeat("json", len(texts))
    found = [
        _no_json_in(text) if is_marked else (text, "json")
        for text, is_marked in zip(texts.to_pylist(), marked.to_pylist(), strict=True)
    ]
    payloads, kinds = zip(*found, strict=True)
    return pa.array(payloads, pa.binary()), pa.array(kinds, pa.string())


def _no_json_in(text: bytes) -> tuple[bytes, PayloadKind]:
    """The text in a JSON string, the bytes in Extended JSON; what it is where it is something else."""
    with suppress(ValueError):
        match orjson.loads(text):
            case str(plain):
                return plain.encode(), "text"
            case {"$binary": {"base64": str(coded)}} as found:
                content = base64.b64decode(coded, validate=True)
                if as_json(content, "binary") == orjson.dumps(found):
                    return content, "binary"
    return text, "json"


def as_text(payload: bytes, kind: str) -> bytes:
    """A payload as text: JSON as it is, bytes as they are where they are UTF-8, else in base64."""
    if kind != "binary":
        return payload
    try:
        payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload)
    return payload
