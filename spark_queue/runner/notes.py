"""Notes of exchanges: the value to write, and the check of its version."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any

from spark_queue.errors import StoreError


def note_value(version: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of a note, which is unique.

    If a reply is lost, `set_note` finds its write by the value.
    """
    return {"v": version, **facts, "by": uuid.uuid4().hex}


def check_version(value: Mapping[str, Any], known: Collection[int], what: str) -> None:
    """Raise `StoreError` if a newer version of this package wrote a note. `what`: what it has."""
    if value.get("v") not in known:
        raise StoreError(
            f"the {what}: their note has version {value.get('v')!r}, this version of spark_queue reads "
            f"{' and '.join(map(str, known))}: upgrade spark_queue"
        )
