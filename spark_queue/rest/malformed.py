"""Error texts for invalid parameters: the parameter, its value, and the allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_queue.errors import did_you_mean

#: The allowed values, for each kind of error of pydantic. Braces are filled from its context.
_RULES = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "1 or 0 (or true, false)",
    "bool_type": "1 or 0 (or true, false)",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "string_too_long": "{max_length} characters or fewer",
    "string_too_short": "{min_length} characters or more",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
}

#: Maximum number of characters of a value in an error text.
_MAX_SHOWN = 60


def describe_error(error: Mapping[str, Any]) -> str:
    """Return the text for one error of FastAPI."""
    place, *_, name = error["loc"]
    subject = (
        f"parameter {name!r}" if place == "query" else f"{name!r} in the path" if place == "path" else str(place)
    )
    kind, context = str(error["type"]), dict(error.get("ctx") or {})
    if kind == "missing":
        return f"{subject} is missing"
    rule = _RULES.get(kind)
    value = str(error.get("input"))
    shown = repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")
    if rule is None:
        return f"{subject} is {shown}, which is not valid"
    hint = did_you_mean(value, re.findall(r"'([^']*)'", str(context["expected"]))) if kind == "literal_error" else ""
    return f"{subject} is {shown} but must be {rule.format(**context)}{hint}"
