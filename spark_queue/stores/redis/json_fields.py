"""The fields of a JSON object as texts: each value keeps the bytes that it was written with."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]

_scan_value = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")


def field_texts(text: str) -> dict[str, str]:
    """Return the fields of a JSON object, each value as its text.

    Raises `ValueError` or `IndexError` if the text is not a JSON object.
    """

    def skip_space(at: int) -> int:
        space = _SPACE.match(text, at)
        return space.end() if space else at

    def expect(mark: str, at: int) -> int:
        at = skip_space(at)
        if text[at] != mark:
            raise ValueError(f"{mark} expected at {at}")
        return skip_space(at + 1)

    found: dict[str, str] = {}
    at = expect("{", 0)
    while text[at] != "}":
        if found:
            at = expect(",", at)
        name, at = scanstring(text, at + 1)
        at = expect(":", at)
        _, end = _scan_value(text, at)
        found[name] = text[at:end]
        at = skip_space(end)
    return found
