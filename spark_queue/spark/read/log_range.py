"""Find where a query or a batch read of a log starts and ends, by positions or by times.

As in Kafka, a time stands for the first message that has this time or a later one. The time of a
message is when it was due: its column `mature`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from spark_queue.errors import CheckpointError, OptionError
from spark_queue.options.consistency import option_error
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.values import FROM_LATEST
from spark_queue.stores.services.log.log import Log
from spark_queue.stores.services.log.segments import LogPosition


def starting_place(log: Log, options: QueueOptions) -> LogPosition:
    """Return the place at which the options start to read the sealed messages of a log.

    Raises `OptionError` if there is none, `CheckpointError` if its message was removed and
    `failOnDataLoss` is set.
    """
    if (moment := options.starting_timestamp) is not None:
        if (found := log.position_since(moment)) is not None:
            return found
        if options.starting_offsets_by_timestamp_strategy == FROM_LATEST:
            return log.end()
        why = (
            f"none of the messages in the log of queue {options.queue!r} is due then or later: set an earlier time, "
            "or startingOffsetsByTimestampStrategy=latest to start after the last message"
        )
        raise _nothing_since(moment, why)
    if isinstance(options.starting_offsets, int):
        return _place_at(log, options, "startingOffsets", options.starting_offsets)
    return log.end() if options.starting_offsets == FROM_LATEST else log.first()


def ending_place(log: Log, options: QueueOptions) -> LogPosition:
    """Return the place before which a batch read ends.

    Raises `OptionError` and `CheckpointError` as `starting_place` does.
    """
    if options.ending_timestamp is not None:
        return log.position_since(options.ending_timestamp) or log.end()
    if isinstance(options.ending_offsets, int):
        return _place_at(log, options, "endingOffsets", options.ending_offsets)
    return log.end()


def check_without_log(options: QueueOptions) -> None:
    """Raise `OptionError` if a batch read names a place in the log of a queue that has none."""
    why = f"queue {options.queue!r} has no log yet: a stream with mode=log puts its messages into one"
    if options.starting_timestamp is not None and options.starting_offsets_by_timestamp_strategy != FROM_LATEST:
        raise _nothing_since(options.starting_timestamp, why)
    for name, number in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if isinstance(number, int) and number > 0:
            raise option_error(name, f"is {number}, but {why}")


def _nothing_since(moment: int, why: str) -> OptionError:
    shown = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")
    return option_error("startingTimestamp", f"is {moment} ({shown}), but {why}")


def _place_at(log: Log, options: QueueOptions, name: str, number: int) -> LogPosition:
    if (found := log.position_at(number)) is not None:
        return found
    first, end = log.positions
    if number > end:
        why = (
            f"is {number}, but the log of queue {options.queue!r} ends at {end}: set a position from {first} to {end}"
        )
        raise option_error(name, why)
    if options.fail_on_data_loss:
        raise CheckpointError(
            f"option {name!r} is {number}, but the log of queue {options.queue!r} begins at {first}: older messages "
            "were removed. Set a later position, or failOnDataLoss=false to continue at the first retained message",
            queue=options.queue,
        )
    return log.first()
