"""Numbers in sentences."""

from __future__ import annotations


def plural(number: int, one: str, more: str | None = None) -> str:
    """Return `1 message`, `2,000 messages`; `more` is the plural where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
