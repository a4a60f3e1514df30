"""The options of `format("queue")`: strings in, one frozen object out. The driver parses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.messages.buckets import Buckets, Layout
from spark_queue.options.consistency import (
    check_dead_letters,
    check_log_range,
    check_mode,
    option_error,
    option_name,
    resolve_delivery,
    resolve_inputs,
    resolve_layout,
)
from spark_queue.options.inputs import ALTS, LOG, QUEUE, ZIP, InputOptions, parse_inputs
from spark_queue.options.masking import HIDDEN, mask, mask_if_url, masked_repr
from spark_queue.options.other_names import other_name_hint
from spark_queue.options.parsers import (
    batch_number,
    bucket_rows,
    byte_size,
    consumer_name,
    count,
    count_or_auto,
    duration,
    flag,
    lease,
    log_position,
    moment,
    not_empty,
    one_of,
    reserving_consumer_name,
    target,
    url_map,
    word,
    zone_name,
)
from spark_queue.options.queue_names import dead_letter_queue, takes_dead_letters
from spark_queue.options.values import (
    ALL_ROLES,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    AUTO,
    BUCKET,
    ERROR,
    EXACTLY_ONCE,
    FAIL,
    FROM_EARLIEST,
    FROM_LATEST,
    IGNORE,
    MAX_COUNT,
    READ_ROLES,
    ROLE_NAMES,
    SPARK_OPTIONS,
    WARN,
    Role,
)


def _option(
    parse: Callable[[str], Any], roles: tuple[Role, ...], doc: str, default: Any = None, shown: str = ""
) -> Any:
    """Return the field of an option. `shown`: its default in the table, if not `default` itself."""
    shown = shown or str(default).lower()
    return field(default=default, metadata={"parse": parse, "roles": roles, "doc": doc, "default": shown})


_PATTERN = "[Pattern](struct-payloads.md#zones-and-patterns)"


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """All options, with their types.

    Durations are in ms. `None` means not set (`reserve_timeout`: never). Users write an option in
    camel case; its letter case is ignored.
    """

    url: str = _option(
        not_empty, ALL_ROLES, "`sqlite:///path/queues.db`, `mongodb://…/db` or `redis://…/0`", MISSING, "required"
    )
    urls: Mapping[str, str] | None = _option(
        url_map, ("stream", "push"),
        "Instead of `url`, several databases: a JSON object of URLs by name. A row names its database in the column "
        "`ns`, one of the `inputs` in its `ns`.",
    )  # fmt: skip
    queue: str | None = _option(
        not_empty, ALL_ROLES, "Name of the queue. Required to read. In a write it overrides the column `queue`."
    )
    inputs: Mapping[str, InputOptions] | None = _option(
        parse_inputs, ("stream",),
        "Instead of `queue`, [several queues read together](inputs.md): a JSON object by column, such as "
        '`{"order": {"queue": "orders"}, "price": {"queue": "prices", "ns": "market"}}`.',
    )  # fmt: skip
    combine: str = _option(
        one_of(ZIP, ALTS), ("stream",),
        "How `inputs` become rows. `zip`: each row has one message of every input, the n-th of each. `alts`: each "
        "micro-batch has messages of one input, the first in order that is not empty.",
        ZIP,
    )  # fmt: skip
    fail_if_missing: bool | None = _option(
        flag, READ_ROLES,
        "Whether to fail if the queue does not exist. Otherwise a stream warns once, and waits for the first "
        "message.",
        shown="`true` in a batch read, `false` in a stream",
    )  # fmt: skip
    mode: str = _option(
        one_of(QUEUE, LOG), READ_ROLES,
        "`queue`: each message goes to one reader and is then removed. `log`: messages are kept, and each query "
        "reads all of them; its checkpoint has its position. A batch read returns the retained messages.",
        QUEUE,
    )  # fmt: skip
    starting_offsets: str | int = _option(
        log_position(FROM_EARLIEST, FROM_LATEST), READ_ROLES,
        "With `mode=log`, where a batch read or a query with a new checkpoint starts: at the first retained message, "
        "after the last one (`latest`, streams only), or at this `position`.",
        FROM_EARLIEST,
    )  # fmt: skip
    starting_timestamp: int | None = _option(
        moment,
        READ_ROLES,
        "Instead of `startingOffsets`: at the first message whose `mature` is at this time (ms since 1970) or later.",
    )
    starting_offsets_by_timestamp_strategy: str = _option(
        one_of(ERROR, FROM_LATEST), READ_ROLES,
        "What happens if there is no such message: an error, or the start is after the last message.",
        ERROR,
    )  # fmt: skip
    ending_offsets: str | int = _option(
        log_position(FROM_LATEST), ("snapshot",),
        "With `mode=log`, where a batch read ends: after the last message, or before this `position`.",
        FROM_LATEST,
    )  # fmt: skip
    ending_timestamp: int | None = _option(
        moment, ("snapshot",),
        "Instead of `endingOffsets`: before the first message whose `mature` is at this time (ms since 1970) or "
        "later. Without such a message, after the last one.",
    )  # fmt: skip
    retention: int | None = _option(
        duration, ("stream",),
        "With `mode=log`: the age at which messages are removed, even if a query has not read them yet.",
        shown="unlimited (remove with `spark-queue log trim`)",
    )  # fmt: skip
    fail_on_data_loss: bool = _option(
        flag, READ_ROLES,
        "With `mode=log`: whether a query fails if its next message was removed, or continues at the first retained "
        "message.",
        True,
    )  # fmt: skip
    consumer: str | None = _option(
        reserving_consumer_name, ("stream", "settle"),
        "Name of the consumer, which the tools show and which `settle` needs.",
        shown="generated, and kept in the checkpoint",
    )  # fmt: skip
    max_records_per_trigger: int | None = _option(
        count_or_auto, ("stream",),
        "Maximum number of messages per micro-batch. `auto` finds the number that "
        "[takes `targetBatchDuration`](options.md#batches-that-find-their-size).",
        shown="`auto`",
    )  # fmt: skip
    max_bytes_per_trigger: int | None = _option(
        byte_size, ("stream",),
        "Maximum bytes of messages per micro-batch, such as `64m`. A batch has at least one message.",
        shown="64 MB for each partition; none if `maxRecordsPerTrigger` is a number",
    )  # fmt: skip
    target_batch_duration: int = _option(
        target, ("stream",), "With `maxRecordsPerTrigger=auto`: how long a micro-batch may take.", 2_000, "2s"
    )
    num_partitions: int | None = _option(
        count, READ_ROLES,
        "Maximum number of partitions of a micro-batch or a [batch read](options.md#batch-reads). There are fewer if "
        "there are few messages.",
        shown="cores of the cluster",
    )  # fmt: skip
    min_partitions: int | None = _option(
        count, ("stream",),
        "Minimum number of partitions per micro-batch, if there are as many messages: for slow work.",
        shown="none: a partition has at least 500 messages, unless it is the only one",
    )  # fmt: skip
    reserve_ahead: bool = _option(
        flag, ("stream",),
        "Whether a query reserves the next micro-batch while Spark processes the last one, if there is a backlog.",
        True,
    )  # fmt: skip
    reserve_timeout: int | None = _option(
        lease, ("stream",),
        "The lease: how long a reservation lasts after its query died. A running query renews it. "
        "`never`: until commit, rollback or release.",
        120_000, "120s with `delivery=at-least-once`, else `never`",
    )  # fmt: skip
    delivery: str = _option(
        one_of(AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE), ("stream", "push"), "Delivery guarantee.",
        AT_LEAST_ONCE, "`at-least-once` to read, `exactly-once` to write",
    )  # fmt: skip
    allow_eviction: bool = _option(
        flag, ("stream", "push"),
        "Whether `delivery=exactly-once` may use a Redis that evicts messages when its memory is full "
        "(`maxmemory-policy` is `allkeys-…`). Messages can be lost then.",
        False,
    )  # fmt: skip
    txn_app_id: str | None = _option(
        consumer_name, ("push",),
        "In a batch write: name of the writer. With `txnVersion`, a repeated write (in `foreachBatch`, for example) "
        "is skipped.",
    )  # fmt: skip
    txn_version: int | None = _option(
        batch_number, ("push",), "In a batch write: its number, which grows with each write of this `txnAppId`."
    )
    replay_check: str = _option(
        one_of("rows", "none"), ("push",),
        "With `delivery=exactly-once`: how a batch is checked that is written again, after a restart for example. "
        "`rows`: the query fails if a row is not among those written before. `none`: no check, for a query whose "
        "rows differ each time (random values, the clock).",
        "rows",
    )  # fmt: skip
    on_unread: str = _option(
        one_of(WARN, FAIL, IGNORE), ("stream",),
        "What happens if a query [has not read](unread.md) all messages of a batch, with `limit` for example: `warn` "
        "(the batch is committed), `fail` the query (the batch is not), or `ignore`.",
        WARN,
    )  # fmt: skip
    max_tries: int | None = _option(
        count, ("stream", "settle"), "Number of failed tries after which a message moves to the dead-letter queue."
    )
    isolate_failures: bool | None = _option(
        flag, ("stream",),
        "Whether a batch that fails repeatedly is split until the failing message is isolated. That message is "
        "retried after a delay, or moves to the dead-letter queue after `maxTries`.",
        shown="`true` with `delivery=at-least-once`",
    )  # fmt: skip
    retry_delay: int = _option(
        duration, ("stream",),
        "Delay before the next try of an isolated message. It doubles after each try.", 1_000, "1s",
    )  # fmt: skip
    dead_letter_queue: str | None = _option(
        not_empty, ("stream", "push", "settle"),
        "Queue for messages that failed `maxTries` times, or that were declared dead.", shown="`<queue>.dead`",
    )  # fmt: skip
    wait_timeout: int = _option(
        duration, ("stream",), "How long an idle trigger waits for a message before it ends without a batch.",
        1_000, "1s",
    )  # fmt: skip
    retry_timeout: int = _option(
        duration, ALL_ROLES,
        "How long to retry while the database cannot be reached. Then the query fails, and no message is lost.",
        30_000, "30s",
    )  # fmt: skip
    history: int | None = _option(
        duration, ("stream", "settle"),
        "How long committed and dead-lettered messages are kept. Read them with `view=history`.",
        shown="`0s`; in `settle`, that of the stream of this `consumer`",
    )  # fmt: skip
    payload_format: str | None = _option(
        one_of("json", "text", "binary", "variant"), ALL_ROLES,
        "Content of the column `payload`: JSON text, plain text, bytes, or a VARIANT. [Typed payloads](typed.md) and "
        "[struct payloads](struct-payloads.md) are JSON: leave it out.",
        shown="`json`; in a write, by the column's type",
    )  # fmt: skip
    time_zone: str | None = _option(
        zone_name, ALL_ROLES,
        "Time zone of times in [typed payloads](typed.md) that name none, such as `2026-07-01T12:00:00`, and of "
        "timestamps that a write puts into [struct payloads](struct-payloads.md).",
        shown="`spark.sql.session.timeZone`",
    )  # fmt: skip
    timestamp_format: str | None = _option(
        str, ("push", "settle"), f"{_PATTERN} of timestamps in struct payloads.",
        shown="`yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]`",
    )  # fmt: skip
    timestamp_ntz_format: str | None = _option(
        str, ("push", "settle"), f"{_PATTERN} of their TIMESTAMP_NTZ.", shown="`yyyy-MM-dd'T'HH:mm:ss[.SSS]`"
    )
    date_format: str | None = _option(str, ("push", "settle"), f"{_PATTERN} of their dates.", shown="`yyyy-MM-dd`")
    ignore_null_fields: bool | None = _option(
        flag, ("push", "settle"), "Whether struct payloads leave out fields that are NULL.",
        shown="that of the session, else `true`",
    )  # fmt: skip
    view: str = _option(
        one_of("messages", "history"), ("snapshot",),
        "What a batch read returns: the messages in the queue, or the processed ones.",
        "messages",
    )  # fmt: skip
    layout: str | None = _option(
        word, ALL_ROLES,
        "In a write: `single` writes each message as one record of the database. `bucket` writes thousands of "
        "messages in one record, which is many times as fast. A queue may hold both. Other values: a layout of keuss "
        "or rfq, as in the URL.",
        shown="the queue's own setting, else `single`",
    )  # fmt: skip
    bucket_size: int | None = _option(
        bucket_rows, ("push",), "Maximum number of messages in one bucket.", shown="4096"
    )
    compression: str | None = _option(one_of("lz4", "zstd"), ("push",), "Compression of buckets.", shown="lz4")
    on_bad_row: str = _option(
        one_of("fail", "deadLetter"), ("push", "settle"),
        "What happens to a row that cannot become a message: `fail` the write, or move the row to the dead-letter "
        "queue, with the reason in header `x-error`.",
        "fail",
    )  # fmt: skip
    operation: str = _option(
        one_of("push", "settle"), ("push", "settle"),
        "What a write does: push messages, or decide the outcome of single messages that a query has reserved.",
        "push",
    )  # fmt: skip

    @classmethod
    def parse(cls, raw: Mapping[str, str], *roles: Role) -> Self:
        """Return the options of a DataFrame that has one of these `roles`.

        Raises `OptionError` for the first option that is unknown, invalid, missing, or contradicts
        another one.
        """
        known = {option_name(one.name): one for one in fields(cls)}
        by_key = {name.lower(): name for name in known}
        chosen: dict[str, Any] = {}
        for key, text in raw.items():
            if key.lower() in SPARK_OPTIONS:
                continue
            name = by_key.get(key.lower())
            if name is None:
                hint = other_name_hint(key) or did_you_mean(key, known) or f"; known are {', '.join(sorted(known))}"
                raise OptionError(f"unknown option {masked_repr(key)}{hint}", option=mask_if_url(key))
            option = known[name]
            if not set(roles) & set(option.metadata["roles"]):
                role_names = " or ".join(ROLE_NAMES[role] for role in roles)
                raise option_error(name, f"is not for {role_names}: leave it out")
            try:
                chosen[option.name] = option.metadata["parse"](str(text))
            except ValueError as error:
                shown = HIDDEN if name in ("url", "urls") else masked_repr(str(text))
                raise option_error(name, f"is {shown} but must be {error}") from None
        if "urls" in chosen:
            if "url" in chosen:
                raise OptionError("options 'url' and 'urls' exclude each other: set one of them", option="urls")
            chosen["url"] = ""
        if "url" not in chosen:
            raise option_error("url", "is missing: set it, to sqlite:///queues.db for example")
        if "push" not in roles and "queue" not in chosen and "inputs" not in chosen:
            raise option_error("queue", "is missing: set it to the name of the queue")
        if "settle" in roles and "consumer" not in chosen:
            raise option_error("consumer", "is missing: settle needs the consumer whose messages it settles")
        minimum, maximum = chosen.get("min_partitions", 0), chosen.get("num_partitions", MAX_COUNT)
        if minimum > maximum:
            why = f"is {minimum} but must not exceed 'numPartitions', which is {maximum}"
            raise option_error("minPartitions", why)
        check_mode(chosen)
        check_log_range(chosen, roles)
        resolve_inputs(chosen, roles)
        check_dead_letters(chosen)
        chosen.setdefault("fail_if_missing", roles == ("snapshot",))
        resolve_delivery(chosen, roles)
        resolve_layout(chosen, roles)
        if "target_batch_duration" in chosen and chosen.get("max_records_per_trigger") is not None:
            raise option_error("targetBatchDuration", f"needs maxRecordsPerTrigger={AUTO}: leave one of them out")
        for name in ("bucket_size", "compression"):
            if name in chosen and chosen.get("layout") != BUCKET:
                raise option_error(option_name(name), f"needs layout={BUCKET}: set that too")
        return cls(**chosen)

    def partition_limits(self, cores: int) -> tuple[int, int]:
        """Return the maximum and minimum number of partitions of a batch, by `cores`."""
        minimum = self.min_partitions or 1
        return self.num_partitions or max(cores, minimum), minimum

    def __repr__(self) -> str:
        urls = self.urls and {name: mask(url) for name, url in self.urls.items()}
        shown = vars(self) | {"url": self.url and mask(self.url), "urls": urls}
        return f"QueueOptions({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def history_ms(self) -> int:
        """The ms for which processed messages are kept; 0 unless set."""
        return self.history or 0

    @property
    def record_layout(self) -> Layout:
        """The layout in which a write stores messages; `None`: that of the queue."""
        if self.layout == BUCKET:
            defaults = Buckets()
            return Buckets(self.bucket_size or defaults.size, self.compression or defaults.compression)
        return "single" if self.layout else None

    def for_input(self, binding: str) -> QueueOptions:
        """Return the options of one of the inputs, as if it were read alone."""
        one = (self.inputs or {})[binding]
        url = self.url if self.urls is None else self.urls[one.ns or ""]
        return replace(self, url=url, urls=None, queue=one.queue, mode=one.mode, inputs=None, combine=ZIP)

    def dead_letter_queue_of(self, queue: str) -> str:
        """Return the dead-letter queue of `queue`.

        One that several queues share may be read, too: its own dead letters go to its default.
        """
        shared = self.dead_letter_queue
        return shared if shared and takes_dead_letters(shared, queue) else dead_letter_queue(queue)
