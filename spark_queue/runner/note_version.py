"""The version of a note of exchanges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from spark_queue.errors import StoreError


def check_version(value: Mapping[str, Any], known: Collection[int], what: str) -> None:
    """Raise `StoreError` if a newer version of this package wrote a note. `what`: what it has."""
    if value.get("v") not in known:
        raise StoreError(
            f"the {what}: their note has version {value.get('v')!r}, this version of spark_queue reads "
            f"{' and '.join(map(str, known))}: upgrade spark_queue"
        )
