"""The options of a write that pushes messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_queue.errors import OptionError
from spark_queue.messages.buckets import Buckets, Layout
from spark_queue.options.consistency import check_database, check_dead_letters, move_layout
from spark_queue.options.declaration import option, option_error, option_name, part
from spark_queue.options.inputs import QUEUE
from spark_queue.options.parsers import batch_number, bucket_rows, consumer_name, one_of
from spark_queue.options.parts import (
    Content,
    Database,
    DeadLetters,
    Guarantee,
    JsonFormats,
    Writing,
    queue_option,
)
from spark_queue.options.values import BUCKET, EXACTLY_ONCE, Role


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """The options of a write that pushes. Without `queue`, each row names its queue."""

    database: Database = part(Database)
    guarantee: Guarantee = part(Guarantee)
    dead_letters: DeadLetters = part(DeadLetters)
    content: Content = part(Content)
    formats: JsonFormats = part(JsonFormats)
    writing: Writing = part(Writing)
    queue: str | None = queue_option(None)
    txn_app_id: str | None = option(
        consumer_name,
        "In a batch write: name of the writer. With `txnVersion`, a repeated write (in `foreachBatch`, for example) "
        "is skipped.",
        after="allow_eviction",
    )
    txn_version: int | None = option(
        batch_number, "In a batch write: its number, which grows with each write of this `txnAppId`."
    )
    replay_check: str = option(
        one_of("rows", "none"),
        "With `delivery=exactly-once`: how a batch is checked that is written again, after a restart for example. "
        "`rows`: the query fails if a row is not among those written before. `none`: no check, for a query whose "
        "rows differ each time (random values, the clock).",
        "rows",
    )
    bucket_size: int | None = option(
        bucket_rows, "Maximum number of messages in one bucket.", shown="4096", after="layout"
    )
    compression: str | None = option(one_of("lz4", "zstd"), "Compression of buckets.", shown="lz4")

    @classmethod
    def resolve(cls, chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
        """Set the defaults of one option that follow from another.

        Raises `OptionError` if an option is missing, or contradicts another one.
        """
        check_database(chosen)
        check_dead_letters(chosen)
        _resolve_delivery(chosen)
        move_layout(chosen)
        for name in ("bucket_size", "compression"):
            if name in chosen and chosen.get("layout") != BUCKET:
                raise option_error(option_name(name), f"needs layout={BUCKET}: set that too")

    def queues_in(self, ns: str) -> list[tuple[str, str]]:
        """Return the queues that the options name in one of the databases, each with its mode."""
        named = [] if self.queue is None else [self.queue]
        return [(one, QUEUE) for one in named + self.dead_letters.named]

    @property
    def record_layout(self) -> Layout:
        """The layout in which messages are stored; `None`: that of the queue."""
        if self.database.layout == BUCKET:
            defaults = Buckets()
            return Buckets(self.bucket_size or defaults.size, self.compression or defaults.compression)
        return "single" if self.database.layout else None


def _resolve_delivery(chosen: dict[str, Any]) -> None:
    delivery = chosen.setdefault("delivery", EXACTLY_ONCE)
    given = [name for name in ("txn_app_id", "txn_version") if name in chosen]
    if len(given) == 1:
        raise OptionError("options 'txnAppId' and 'txnVersion' go together: set both or neither", option="txnAppId")
    for name in ("txn_app_id", "replay_check"):
        if name in chosen and delivery != EXACTLY_ONCE:
            raise option_error(option_name(name), f"needs delivery={EXACTLY_ONCE}, not {delivery}")
