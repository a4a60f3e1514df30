"""Payloads: conversion between Python values, stored bytes, JSON and text."""

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
from spark_queue.messages.json_text import HALF_SURROGATE, dump_json, load_foreign_json
from spark_queue.messages.schema import PayloadKind

Json = dict[str, Any] | list[Any] | str | int | float | bool | None


def encode(payload: Json | bytes) -> tuple[bytes, PayloadKind]:
    """Return the bytes and the kind under which a Python value is stored.

    Raises `MessageError` for a value that JSON or UTF-8 cannot hold.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "binary"
    if isinstance(payload, str):
        try:
            return payload.encode(), "text"
        except UnicodeEncodeError as error:
            raise MessageError(f"payload: {HALF_SURROGATE}") from error
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
    """Return a payload as JSON text.

    A text becomes a JSON string, bytes become Extended JSON `{"$binary": …}`.
    """
    if kind == "json":
        return payload
    if kind == "text":
        return orjson.dumps(payload.decode())
    return orjson.dumps({"$binary": {"base64": base64.b64encode(payload).decode(), "subType": "00"}})


def to_jsonable(value: object) -> object:
    """Convert a value that JSON cannot hold into one that it can.

    A moment becomes text in ISO format (UTC), bytes become Extended JSON, a dataclass becomes a
    dict. Raises `TypeError` for another type.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return orjson.loads(as_json(value, "binary"))
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def from_json(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the payloads that JSON texts stand for, and their kinds: the inverse of `as_json`."""
    strings = pc.starts_with(texts, '"')
    marked = pc.fill_null(pc.or_(strings, pc.starts_with(texts, '{"$binary":')), False)
    if not pc.any(marked).as_py():
        return texts, pa.repeat("json", len(texts))
    found = [
        _decode_json_text(text) if is_marked else (text, "json")
        for text, is_marked in zip(texts.to_pylist(), marked.to_pylist(), strict=True)
    ]
    payloads, kinds = zip(*found, strict=True)
    return pa.array(payloads, pa.binary()), pa.array(kinds, pa.string())


def _decode_json_text(text: bytes) -> tuple[bytes, PayloadKind]:
    """Return the payload that a JSON text stands for, and its kind.

    It is the text of a JSON string, the bytes of Extended JSON, or else the JSON itself.
    """
    with suppress(ValueError):
        match orjson.loads(text):
            case str(plain):
                return plain.encode(), "text"
            case {"$binary": {"base64": str(coded)}} as found:
                payload = base64.b64decode(coded, validate=True)
                if as_json(payload, "binary") == orjson.dumps(found):
                    return payload, "binary"
    return text, "json"


def text_or_bytes(content: bytes) -> tuple[bytes, PayloadKind]:
    """Return a payload with its kind: text if it is UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return content, "binary"
    return content, "text"


def as_text(payload: bytes, kind: str) -> bytes:
    """Return a payload as text: JSON, text and UTF-8 bytes unchanged, other bytes in base64."""
    if kind != "binary":
        return payload
    try:
        payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload)
    return payload
