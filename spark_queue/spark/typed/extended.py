"""Values of MongoDB that JSON lacks, as other programs put them into payloads: as Extended JSON.

A date of a Node program is `{"$date": …}` in a payload, its `Decimal128` `{"$numberDecimal": …}`.
Each is read as the type of Spark that holds it. Read as any other type, it is an object.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from spark_queue.options.time_zones import UTC_ZONE
from spark_queue.spark.typed.moments import checked_micros, micros_of

#: Converts what is in the object. Raises `ValueError` if that is not as MongoDB writes it.
ExtendedForm = Callable[[Any], Any]

_OID = re.compile(r"[0-9a-fA-F]{24}")
_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity", re.ASCII)
_UUID_KINDS = ("03", "04", "3", "4")
_DAY_MICROS = 86_400_000_000


def with_forms(usual: type, parse: Callable[[Any], Any], forms: Mapping[str, ExtendedForm]) -> Callable[[Any], Any]:
    """Return the parser of a type that also takes these objects of Extended JSON, by name.

    `usual`: the type of most values.
    """

    def parse_value(value: Any) -> Any:
        if type(value) is usual:
            return parse(value)
        found = form_value(value, forms)
        return parse(value) if found is None else found

    return parse_value


def form_value(value: Any, forms: Mapping[str, ExtendedForm]) -> Any:
    """Return the value of an object of Extended JSON, or `None` if it is none of these forms."""
    if isinstance(value, dict) and len(value) == 1:
        [(name, inner)] = value.items()
        form = forms.get(name)
        if form is not None:
            try:
                return form(inner)
            except (ValueError, TypeError, KeyError):
                pass  # an object of the user's own
    return None


def moment_forms() -> dict[str, ExtendedForm]:
    """Return the forms of a TIMESTAMP."""
    return {"$date": _micros}


def day_forms() -> dict[str, ExtendedForm]:
    """Return the forms of a DATE: that of the moment in UTC."""
    return {"$date": lambda inner: _micros(inner) // _DAY_MICROS}


def text_forms() -> dict[str, ExtendedForm]:
    """Return the forms of a STRING: identifiers."""
    return {"$oid": _object_id, "$uuid": lambda inner: str(UUID(inner)), "$binary": _uuid}


def bytes_forms() -> dict[str, ExtendedForm]:
    """Return the forms of a BINARY."""
    return {"$binary": _bytes, "$uuid": lambda inner: UUID(inner).bytes}


def integer_forms(parse: Callable[[Any], Any]) -> dict[str, ExtendedForm]:
    """Return the forms of an integer type. `parse`: its parser of integers."""

    def form(inner: Any) -> Any:
        return parse(int(_matched(_INTEGER, inner)))

    return {"$numberLong": form, "$numberInt": form}


def number_forms(parse: Callable[[Any], Any]) -> dict[str, ExtendedForm]:
    """Return the forms of DECIMAL, DOUBLE and FLOAT. `parse`: the parser of their text."""

    def form(inner: Any) -> Any:
        return parse(_matched(_NUMBER, inner))

    return dict.fromkeys(("$numberDecimal", "$numberDouble", "$numberLong", "$numberInt"), form)


def _matched(pattern: re.Pattern[str], inner: Any) -> str:
    if pattern.fullmatch(inner) is None:
        raise ValueError
    return str(inner)


def _micros(inner: Any) -> int:
    if isinstance(inner, str):
        return micros_of(inner, UTC_ZONE)
    if isinstance(inner, dict):
        [(name, inner)] = inner.items()
        if name != "$numberLong":
            raise ValueError
        inner = int(_matched(_INTEGER, inner))
    if not isinstance(inner, int) or isinstance(inner, bool):
        raise ValueError
    return checked_micros(inner * 1000)


def _object_id(inner: Any) -> str:
    return _matched(_OID, inner)


def _bytes(inner: Any) -> bytes:
    return base64.b64decode(inner["base64"], validate=True)


def _uuid(inner: Any) -> str:
    if inner["subType"] not in _UUID_KINDS:
        raise ValueError
    return str(UUID(bytes=_bytes(inner)))
