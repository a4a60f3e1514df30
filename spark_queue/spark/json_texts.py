"""Numbers, texts and bytes in JSON, as Java and Spark's `to_json` write them, by whole columns."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: What JSON escapes in a text. Other letters stay, as UTF-8.
_SPECIAL = r'[\x00-\x1f"\\]'
_SPECIAL_BYTES = re.compile(_SPECIAL.encode())
_ESCAPES = {bytes([code]): b"\\u%04X" % code for code in range(0x20)}
_ESCAPES |= {b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\f": b"\\f", b"\r": b"\\r", b'"': b'\\"', b"\\": b"\\\\"}

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

#: Java writes the numbers from the first to the second without an exponent.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7

#: Below it, the digits that identify a number may be fewer than the two that Java writes.
_TINY = {pa.float32(): 1e-40, pa.float64(): 1e-300}


def escape(text: bytes) -> bytes:
    """Return the content of a JSON string. Bytes that are not UTF-8 stay as they are."""
    return _SPECIAL_BYTES.sub(lambda found: _ESCAPES[found[0]], text)


def escape_texts(texts: pa.Array) -> pa.Array:
    """Return a binary column as the contents of JSON strings."""
    special = pc.match_substring_regex(texts, _SPECIAL).fill_null(False)
    if not special.true_count:
        return texts
    escaped = [escape(one) for one in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(escaped, pa.binary()))


def base64_texts(column: pa.Array) -> pa.Array:
    """Return a binary column as Base64."""
    return pa.array([None if one is None else base64.b64encode(one) for one in column.to_pylist()], pa.binary())


def float_texts(column: pa.Array) -> pa.Array:
    """Return a column of FLOAT or DOUBLE as Java writes it, with the fewest digits that do."""
    size = pc.abs(column)
    plain = pc.and_(pc.greater_equal(size, _PLAIN_FROM), pc.less(size, _PLAIN_TO))
    plain = pc.or_(plain, pc.equal(size, 0))
    texts = column.cast(pa.string())
    whole = pc.and_(plain, pc.equal(pc.floor(column), column))
    if pc.any(whole).as_py():
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    other = pc.invert(plain).fill_null(False)
    if other.true_count:
        tiny = _TINY[column.type]
        pairs = zip(column.filter(other).to_pylist(), texts.filter(other).to_pylist(), strict=True)
        written = [_java_number(number, text, tiny) for number, text in pairs]
        texts = pc.replace_with_mask(texts, other, pa.array(written, pa.string()))
    return texts


def float_text(number: np.floating[Any]) -> str:
    """Return a single number, as `float_texts`."""
    if _PLAIN_FROM <= abs(number) < _PLAIN_TO or number == 0:
        return np.format_float_positional(number, trim="0")
    text = np.format_float_scientific(number, trim="-")
    return _java_number(float(number), text, _TINY[pa.float32() if number.itemsize == 4 else pa.float64()])


def quote_not_finite(texts: pa.Array) -> pa.Array:
    """Return the texts of numbers as JSON: NaN and infinity become strings."""
    wrong = pc.is_in(texts, pa.array([*_NOT_FINITE.values()]))
    if not wrong.true_count:
        return texts
    return pc.if_else(wrong, pc.binary_join_element_wise('"', texts, '"', ""), texts)


def _java_number(number: float, text: str, tiny: float) -> str:
    """Return a number that Java writes with an exponent, from the text of its shortest digits."""
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    if abs(number) < tiny and len(re.sub(r"e.*|\D", "", text).strip("0")) == 1:
        text = f"{number:.1e}"
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"
