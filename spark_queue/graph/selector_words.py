"""Text of selectors for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: The operators that Spark prints before their operands, and their form between operands.
OPERATORS = {one: one for one in ("=", "<=>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%")}
OPERATORS |= {"and": "AND", "or": "OR", "like": "LIKE", "rlike": "RLIKE"}

#: The operators that stand before, or after, a single operand.
BEFORE = {"!": "NOT", "not": "NOT", "negative": "-"}
AFTER = {"isNull": "IS NULL", "isNotNull": "IS NOT NULL"}

#: A call of a function or an operator: the name, and the text between the parentheses.
CALL = re.compile(r"(\w+|[!<>=+*/%-]+)\((.*)\)", re.DOTALL)


def selector_text(selector: Any) -> str:
    """Return a selector as text: the SQL, the name of a function, or a Column as SQL."""
    if selector is None:
        return ""
    if isinstance(selector, str):
        return " ".join(selector.split())
    name: Callable[..., object] | str = getattr(selector, "__name__", "")
    return str(name) if name else infix(str(selector).removeprefix("Column<'").removesuffix("'>"))


def infix(text: str) -> str:
    """Return the text of a Column as Spark prints it, with operators between their operands.

    `=(headers['class'], 'late')` becomes `headers['class'] = 'late'`. A text that is no call does
    not change.
    """
    call = CALL.fullmatch(text)
    parts = _split(call[2]) if call else None
    if call is None or parts is None:
        return text
    name, operands = call[1], [infix(one) for one in parts]
    if name in OPERATORS and len(operands) == 2:
        return f" {OPERATORS[name]} ".join(_inside(one, whole) for one, whole in zip(operands, parts, strict=True))
    if name == "in" and len(operands) > 1:
        return f"{_inside(operands[0], parts[0])} IN ({', '.join(operands[1:])})"
    if name in BEFORE and len(operands) == 1:
        return f"{BEFORE[name]} {_inside(operands[0], parts[0])}".replace("- ", "-")
    if name in AFTER and len(operands) == 1:
        return f"{_inside(operands[0], parts[0])} {AFTER[name]}"
    return f"{name}({', '.join(operands)})"


def _inside(operand: str, printed: str) -> str:
    """Return an operand, in parentheses if it has an operator of its own."""
    call = CALL.fullmatch(printed)
    operator = call is not None and (call[1] in (*OPERATORS, *BEFORE, *AFTER, "in"))
    return f"({operand})" if operator and operand != printed else operand


def _split(arguments: str) -> list[str] | None:
    """Split arguments at their commas, except inside of quotes or parentheses.

    Return `None` if quotes or parentheses do not match.
    """
    parts, depth, quoted, skip, begin = [], 0, False, False, 0
    for at, one in enumerate(arguments):
        if skip:
            skip = False
        elif quoted:
            skip, quoted = one == "\\", one != "'"
        elif one == "'":
            quoted = True
        elif one in "([":
            depth += 1
        elif one in ")]":
            depth -= 1
            if depth < 0:
                return None
        elif one == "," and depth == 0:
            parts.append(arguments[begin:at].strip())
            begin = at + 1
    return None if quoted or depth else [*parts, arguments[begin:].strip()]
