"""The parts of the options that several roles share. Durations are in ms, and `None` is not set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any

from spark_queue.options.declaration import option
from spark_queue.options.inputs import LOG, QUEUE
from spark_queue.options.masking import mask
from spark_queue.options.parsers import (
    count,
    duration,
    flag,
    log_position,
    moment,
    not_empty,
    one_of,
    reserving_consumer_name,
    url_map,
    word,
    zone_name,
)
from spark_queue.options.queue_names import dead_letter_queue, takes_dead_letters
from spark_queue.options.values import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    ERROR,
    EXACTLY_ONCE,
    FROM_EARLIEST,
    FROM_LATEST,
)

_PATTERN = "[Pattern](struct-payloads.md#zones-and-patterns)"


@dataclass(frozen=True, kw_only=True)
class Database:
    """The database, or several ones by name."""

    url: str = option(
        not_empty, "`sqlite:///path/queues.db`, `mongodb://…/db` or `redis://…/0`", MISSING, "required", secret=True
    )
    urls: Mapping[str, str] | None = option(
        url_map,
        "Instead of `url`, several databases: a JSON object of URLs by name. A row names its database in the column "
        "`ns`, one of the `inputs` in its `ns`.",
        secret=True,
    )
    retry_timeout: int = option(
        duration,
        "How long to retry while the database cannot be reached. Then the query fails, and no message is lost.",
        30_000,
        "30s",
        after="wait_timeout",
    )
    layout: str | None = option(
        word,
        "In a write: `single` writes each message as one record of the database. `bucket` writes thousands of "
        "messages in one record, which is many times as fast. A queue may hold both. Other values: a layout of keuss "
        "or rfq, as in the URL.",
        shown="the queue's own setting, else `single`",
        after="view",
    )

    def __repr__(self) -> str:
        urls = self.urls and {name: mask(url) for name, url in self.urls.items()}
        shown = vars(self) | {"url": self.url and mask(self.url), "urls": urls}
        return f"Database({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def by_name(self) -> Mapping[str, str]:
        """The URL of each database; a single one has an empty name."""
        return {"": self.url} if self.urls is None else self.urls

    def map_urls(self, change: Callable[[str, str], str]) -> Database:
        """Return the same with other URLs: `change` returns one for a name and its URL."""
        changed = {name: change(name, url) for name, url in self.by_name.items()}
        return replace(self, url=changed[""]) if self.urls is None else replace(self, urls=changed)

    def only(self, ns: str | None) -> Database:
        """Return one of the databases alone; `None` if there is only one."""
        return self if ns is None else replace(self, url=self.by_name[ns], urls=None)


def queue_option(default: Any = MISSING, **facts: Any) -> Any:
    """Return the field of the option `queue`, which reads and `settle` require."""
    return option(
        not_empty,
        "Name of the queue. Required to read. In a write it overrides the column `queue`.",
        default,
        "none",
        after="urls",
        **facts,
    )


def consumer_option(default: Any = MISSING) -> Any:
    """Return the field of the option `consumer`, which `settle` requires."""
    return option(
        reserving_consumer_name,
        "Name of the consumer, which the tools show and which `settle` needs.",
        default,
        shown="generated, and kept in the checkpoint",
        after="fail_on_data_loss",
    )


@dataclass(frozen=True, kw_only=True)
class QueueReading:
    """How a queue is read."""

    fail_if_missing: bool = option(
        flag,
        "Whether to fail if the queue does not exist. Otherwise a stream warns once, and waits for the first "
        "message.",
        False,
        shown="`true` in a batch read, `false` in a stream",
        after="combine",
    )
    mode: str = option(
        one_of(QUEUE, LOG),
        "`queue`: each message goes to one reader and is then removed. `log`: messages are kept, and each query "
        "reads all of them; its checkpoint has its position. A batch read returns the retained messages.",
        QUEUE,
    )
    num_partitions: int | None = option(
        count,
        "Maximum number of partitions of a micro-batch or a [batch read](options.md#batch-reads). There are fewer if "
        "there are few messages.",
        shown="cores of the cluster",
        after="target_batch_duration",
    )


@dataclass(frozen=True, kw_only=True)
class LogStart:
    """Where the reading of a log starts, and whether it may leave messages out."""

    starting_offsets: str | int = option(
        log_position(FROM_EARLIEST, FROM_LATEST),
        "With `mode=log`, where a batch read or a query with a new checkpoint starts: at the first retained message, "
        "after the last one (`latest`, streams only), or at this `position`.",
        FROM_EARLIEST,
        after="mode",
        mode=LOG,
    )
    starting_timestamp: int | None = option(
        moment,
        "Instead of `startingOffsets`: at the first message whose `mature` is at this time (ms since 1970) or later.",
        mode=LOG,
    )
    starting_offsets_by_timestamp_strategy: str = option(
        one_of(ERROR, FROM_LATEST),
        "What happens if there is no such message: an error, or the start is after the last message.",
        ERROR,
        mode=LOG,
    )
    fail_on_data_loss: bool = option(
        flag,
        "With `mode=log`: whether a query fails if its next message was removed, or continues at the first retained "
        "message.",
        True,
        after="retention",
        mode=LOG,
    )

    @property
    def starts_at_first(self) -> bool:
        """Whether it starts at the first retained message."""
        return self.starting_offsets == FROM_EARLIEST and self.starting_timestamp is None


@dataclass(frozen=True, kw_only=True)
class Content:
    """What payloads are."""

    payload_format: str | None = option(
        one_of("json", "text", "binary", "variant"),
        "Content of the column `payload`: JSON text, plain text, bytes, or a VARIANT. [Typed payloads](typed.md) and "
        "[struct payloads](struct-payloads.md) are JSON: leave it out.",
        shown="`json`; in a write, by the column's type",
        after="history",
    )
    time_zone: str | None = option(
        zone_name,
        "Time zone of times in [typed payloads](typed.md) that name none, such as `2026-07-01T12:00:00`, and of "
        "timestamps that a write puts into [struct payloads](struct-payloads.md).",
        shown="`spark.sql.session.timeZone`",
    )

    @property
    def read_format(self) -> str:
        """The format in which payloads are read."""
        return self.payload_format or "json"


@dataclass(frozen=True, kw_only=True)
class JsonFormats:
    """How a write turns struct payloads into JSON."""

    timestamp_format: str | None = option(
        str,
        f"{_PATTERN} of timestamps in struct payloads.",
        shown="`yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]`",
        after="time_zone",
    )
    timestamp_ntz_format: str | None = option(
        str, f"{_PATTERN} of their TIMESTAMP_NTZ.", shown="`yyyy-MM-dd'T'HH:mm:ss[.SSS]`"
    )
    date_format: str | None = option(str, f"{_PATTERN} of their dates.", shown="`yyyy-MM-dd`")
    ignore_null_fields: bool | None = option(
        flag, "Whether struct payloads leave out fields that are NULL.", shown="that of the session, else `true`"
    )


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The delivery guarantee."""

    delivery: str = option(
        one_of(AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE),
        "Delivery guarantee.",
        AT_LEAST_ONCE,
        "`at-least-once` to read, `exactly-once` to write",
        after="reserve_timeout",
    )
    allow_eviction: bool = option(
        flag,
        "Whether `delivery=exactly-once` may use a Redis that evicts messages when its memory is full "
        "(`maxmemory-policy` is `allkeys-…`). Messages can be lost then.",
        False,
    )

    @property
    def exactly_once(self) -> bool:
        """Whether each message is delivered exactly once."""
        return self.delivery == EXACTLY_ONCE


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What becomes of messages that were reserved."""

    max_tries: int | None = option(
        count,
        "Number of failed tries after which a message moves to the dead-letter queue.",
        after="on_unread",
        mode=QUEUE,
    )
    history: int | None = option(
        duration,
        "How long committed and dead-lettered messages are kept. Read them with `view=history`.",
        shown="`0s`; in `settle`, that of the stream of this `consumer`",
        after="retry_timeout",
        mode=QUEUE,
    )

    @property
    def history_ms(self) -> int:
        """The ms for which processed messages are kept; 0 unless set."""
        return self.history or 0


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """Where dead letters go."""

    dead_letter_queue: str | None = option(
        not_empty,
        "Queue for messages that failed `maxTries` times, or that were declared dead.",
        shown="`<queue>.dead`",
        after="retry_delay",
        mode=QUEUE,
    )

    @property
    def named(self) -> list[str]:
        """The queue that the option names, if it does."""
        return [] if self.dead_letter_queue is None else [self.dead_letter_queue]

    def queue_of(self, queue: str) -> str:
        """Return the dead-letter queue of `queue`.

        One that several queues share may be read, too: its own dead letters go to its default.
        """
        shared = self.dead_letter_queue
        return shared if shared and takes_dead_letters(shared, queue) else dead_letter_queue(queue)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What a write does, and what happens to rows that it cannot write."""

    on_bad_row: str = option(
        one_of("fail", "deadLetter"),
        "What happens to a row that cannot become a message: `fail` the write, or move the row to the dead-letter "
        "queue, with the reason in header `x-error`.",
        "fail",
        after="compression",
    )
    operation: str = option(
        one_of("push", "settle"),
        "What a write does: push messages, or decide the outcome of single messages that a query has reserved.",
        "push",
    )
