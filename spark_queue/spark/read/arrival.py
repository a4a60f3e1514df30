"""The moment at which a batch was reserved, in its offset: the column `arrived`.

A watermark drops a row whose time is not later than it, and its message is then removed: lost. The
time at which a message is due goes back, when it is redriven or comes late. `arrived` grows from
batch to batch, and a batch that comes again has the one that its offset names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_queue.stores.base import Store

#: The column, and the field of an offset. Offsets of earlier versions lack it.
ARRIVED = "arrived"


def next_arrival(store: Store, start: Mapping[str, Any]) -> int:
    """Return when the batch after `start` was reserved: now, by the database's clock (ms).

    It is later than that of the batch before, even if the clock was set back: a watermark without
    a delay drops what is as old as the newest row.
    """
    before: int = start.get(ARRIVED, 0)
    return max(store.now(), before + 1)
