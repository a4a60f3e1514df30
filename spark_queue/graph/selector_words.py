"""Text of selectors for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: The operators that Spark prints before their operands, and their form between operands.
INFIX_OPERATORS = {one: one for one in ("=", "<=>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%")}
INFIX_OPERATORS |= {"and": "AND", "or": "OR", "like": "LIKE", "rlike": "RLIKE"}

#: The operators that stand before, or after, a single operand.
PREFIX_OPERATORS = {"!": "NOT", "not": "NOT", "negative": "-"}
POSTFIX_OPERATORS = {"isNull": "IS NULL", "isNotNull": "IS NOT NULL"}

#: A call of a function or an operator: the name, and the text between the parentheses.
CALL_PATTERN = re.compile(r"(\w+|[!<>=+*/%-]+)\((.*)\)", re.DOTALL)


def selector_text(selector: Any) -> str:
    """Return a selector as text: the SQL, the name of a function, or a Column as SQL."""
    if selector is None:
        return ""
    if isinstance(selector, str):
        return " ".join(selector.split())
    name: Callable[..., object] | str = getattr(selector, "__name__", "")
    return str(name) if name else to_infix(str(selector).removeprefix("Column<'").removesuffix("'>"))


def to_infix(text: str) -> str:
    """Return the text of a Column as Spark prints it, with operators between their operands.

    `=(headers['class'], 'late')` becomes `headers['class'] = 'late'`. A text that is no call does
    not change.
    """
    call = CALL_PATTERN.fullmatch(text)
    parts = _split_arguments(call[2]) if call else None
    if call is None or parts is None:
        return text
    name, operands = call[1], [to_infix(one) for one in parts]
    if name in INFIX_OPERATORS and len(operands) == 2:
        return f" {INFIX_OPERATORS[name]} ".join(
            _parenthesize(one, whole) for one, whole in zip(operands, parts, strict=True)
        )
    if name == "in" and len(operands) > 1:
        return f"{_parenthesize(operands[0], parts[0])} IN ({', '.join(operands[1:])})"
    if name in PREFIX_OPERATORS and len(operands) == 1:
        return f"{PREFIX_OPERATORS[name]} {_parenthesize(operands[0], parts[0])}".replace("- ", "-")
    if name in POSTFIX_OPERATORS and len(operands) == 1:
        return f"{_parenthesize(operands[0], parts[0])} {POSTFIX_OPERATORS[name]}"
    return f"{name}({', '.join(operands)})"


def _parenthesize(operand: str, printed: str) -> str:
    """Return an operand, in parentheses if it has an operator of its own."""
    call = CALL_PATTERN.fullmatch(printed)
    operator = call is not None and (call[1] in (*INFIX_OPERATORS, *PREFIX_OPERATORS, *POSTFIX_OPERATORS, "in"))
    return f"({operand})" if operator and operand != printed else operand


def _split_arguments(arguments: str) -> list[str] | None:
    """Split arguments at their commas, except inside of quotes or parentheses.

    Return `None` if quotes or parentheses do not match.
    """
    parts, depth, quoted, skip, start = [], 0, False, False, 0
    for position, one in enumerate(arguments):
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
            parts.append(arguments[start:position].strip())
            start = position + 1
    return None if quoted or depth else [*parts, arguments[start:].strip()]
