"""How long an expression may be, and how deeply nested, before a parser gets it.

A parser calls itself for each level. Thousands of levels end the thread of the parser. Then Java
may not be able to load classes that it was loading.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

#: Most bytes of an expression, and most levels of its parts.
MAX_TEXT, MAX_NESTING = 64 << 10, 200

_OPENING = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE))
_CLOSING = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE))

#: Words after which another part begins on the same level.
_SEPARATORS = frozenset(("and", "or", "when", "then", "else"))

#: Kinds of tokens that are operands.
_OPERANDS = frozenset((TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER)) | _CLOSING


def length_mistake(text: str) -> str:
    """Return why an expression is too long; an empty text if it is not."""
    if len(text) > MAX_TEXT or len(text.encode(errors="replace")) > MAX_TEXT:
        return f"at most {MAX_TEXT:,} bytes long"
    return ""


def nesting_mistake(tokens: Sequence[Token]) -> str:
    """Return why an expression is nested too deeply; an empty text if it is not."""
    if nesting(tokens) > MAX_NESTING:
        return f"nested at most {MAX_NESTING} levels deep: operators in a row count, and parentheses"
    return ""


def nesting(tokens: Sequence[Token]) -> int:
    """Return how many levels the parts of an expression may have.

    Each bracket opens a level. Within it, each operator may be part of the next one, unless a comma
    or AND, OR, WHEN, THEN or ELSE is between them. A CASE stays: the word that ends it may be the
    name of something.
    """
    deepest = 0
    chains, cases = [0], [0]  # of each open level: operators in a row, and CASEs
    open_levels = open_chains = 0  # of all levels but the innermost one
    before: Token | None = None
    for one in tokens:
        kind, word = one.token_type, one.text.lower()
        if kind in _OPENING:
            open_levels += 1
            open_chains += chains[-1] + cases[-1]
            chains.append(0)
            cases.append(0)
        elif kind in _CLOSING and len(chains) > 1:
            chains.pop()
            cases.pop()
            open_levels -= 1
            open_chains -= chains[-1] + cases[-1]
            chains[-1] += 1  # what follows may be a part of it, as in f(x)[0][0]
        elif kind == TokenType.COMMA or (word in _SEPARATORS and before is not None and _is_operand(before)):
            chains[-1] = 0
        elif word == "case":
            cases[-1] += 1
        elif kind not in _OPERANDS:
            chains[-1] += word.count("~") or 1  # `~~` is one token
        deepest = max(deepest, open_levels + open_chains + chains[-1] + cases[-1])
        before = one
    return deepest


def _is_operand(token: Token) -> bool:
    """Return whether an operator may follow a token: it is a name, a value or the end of one."""
    return token.token_type in _OPERANDS or token.text[-1:].isalnum()
