"""Fields of the payload and of the state in expressions: `payload:a.b[0]` and `state:a.b`.

Spark 4.0 does not know this form, and later versions know it for VARIANTs only.
"""

from __future__ import annotations

import re
import secrets

from sqlglot import TokenError, tokenize
from sqlglot.tokenizer_core import Token, TokenType

#: The payload as a VARIANT, parsed once for all expressions. No caller can guess its name: only
#: `to_spark_sql` writes it into a text.
JSON_COLUMN = f"_json_{secrets.token_hex(8)}"

_WORD = re.compile(r"\w+")

#: The columns whose fields have the form `payload:a.b`.
_COLUMNS_WITH_FIELDS = ("payload", "state")


def to_spark_sql(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return SQL text with each `payload:a.b` and `state:a.b` in a form that all of Spark reads.

    Also return pairs of positions in the new text and in the old one, in order. The positions of a
    pair mean the same part.
    """
    try:
        tokens = tokenize(text, read="databricks")
    except TokenError:
        return text, [(0, 0)]  # Spark has the better error
    converted, copied, index, positions = "", 0, 0, [(0, 0)]
    while index < len(tokens):
        end, keys = _field_at(tokens, index)
        if keys:
            converted += text[copied : tokens[index].start]
            positions.append((len(converted), tokens[index].start))
            converted += _field_sql(tokens[index].text.lower(), keys)
            copied = tokens[end - 1].end + 1
            positions.append((len(converted), copied))
        index = max(end, index + 1)
    return converted + text[copied:], positions


def _field_at(tokens: list[Token], index: int) -> tuple[int, list[str | int]]:
    """Return the end and the keys of a field such as `payload:a.b[0]['c']` that begins here.

    There are no keys if no field begins here.
    """

    def kind(position: int) -> TokenType | None:
        return tokens[position].token_type if position < len(tokens) else None

    first = tokens[index].text.lower() in _COLUMNS_WITH_FIELDS
    if not first or kind(index - 1 if index else len(tokens)) == TokenType.DOT or kind(index + 1) != TokenType.COLON:
        return index, []
    index += 2
    if kind(index) is None:
        return index, []
    keys: list[str | int] = [tokens[index].text]
    index += 1
    while True:
        if kind(index) == TokenType.DOT and kind(index + 1) is not None:
            keys.append(tokens[index + 1].text)
            index += 2
        elif kind(index) == TokenType.L_BRACKET and kind(index + 2) == TokenType.R_BRACKET:
            subscript = tokens[index + 1]
            keys.append(int(subscript.text) if subscript.token_type == TokenType.NUMBER else subscript.text)
            index += 3
        else:
            return index, keys


def _field_sql(column: str, keys: list[str | int]) -> str:
    """Return the SQL of a field, as text: of the payload, or of a value of the state."""
    if column == "payload":
        return f"try_variant_get({JSON_COLUMN}, {_quote('$' + _json_path(keys))}, 'string')"
    value = f"state[{_quote(str(keys[0]))}]"
    if len(keys) == 1:
        return value
    return f"try_variant_get(try_parse_json({value}), {_quote('$' + _json_path(keys[1:]))}, 'string')"


def _json_path(keys: list[str | int]) -> str:
    return "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" if _WORD.fullmatch(key) else f"[{_quote(key)}]"
        for key in keys
    )


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
