"""The options of a batch read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_queue.options.consistency import (
    check_database,
    check_log_range,
    check_mode,
    check_no_record_layout,
    check_queue,
    move_layout,
)
from spark_queue.options.declaration import option, option_error, part
from spark_queue.options.inputs import LOG, QUEUE
from spark_queue.options.parsers import log_position, moment, one_of
from spark_queue.options.parts import Content, Database, LogStart, QueueReading, queue_option
from spark_queue.options.values import FROM_LATEST, Role


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """The options of a batch read. Durations are in ms, and `None` is not set."""

    database: Database = part(Database, without=("urls",))
    reading: QueueReading = part(QueueReading)
    log: LogStart = part(LogStart)
    content: Content = part(Content)
    queue: str = queue_option()
    ending_offsets: str | int = option(
        log_position(FROM_LATEST),
        "With `mode=log`, where a batch read ends: after the last message, or before this `position`.",
        FROM_LATEST,
        after="starting_offsets_by_timestamp_strategy",
        mode=LOG,
    )
    ending_timestamp: int | None = option(
        moment,
        "Instead of `endingOffsets`: before the first message whose `mature` is at this time (ms since 1970) or "
        "later. Without such a message, after the last one.",
        mode=LOG,
    )
    view: str = option(
        one_of("messages", "history"),
        "What a batch read returns: the messages in the queue, or the processed ones.",
        "messages",
        after="ignore_null_fields",
        mode=QUEUE,
    )

    @classmethod
    def resolve(cls, chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
        """Set the defaults of one option that follow from another. `roles`: for errors.

        Raises `OptionError` if an option is missing, or contradicts another one.
        """
        check_database(chosen)
        check_queue(chosen)
        check_mode(cls, chosen)
        check_log_range(chosen)
        if roles == ("snapshot",) and chosen.get("starting_offsets") == FROM_LATEST:
            nothing = "after which a batch read finds nothing: leave it out, or set a position or a time"
            raise option_error("startingOffsets", f"is {FROM_LATEST!r}, {nothing}")
        chosen.setdefault("fail_if_missing", True)
        check_no_record_layout(chosen, roles)
        move_layout(chosen)

    def queues_in(self, ns: str) -> list[tuple[str, str]]:
        """Return the queues that the options name in one of the databases, each with its mode."""
        return [(self.queue, self.reading.mode)]
