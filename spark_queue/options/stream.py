"""The options of a streaming read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_queue.errors import OptionError
from spark_queue.options.consistency import (
    check_database,
    check_dead_letters,
    check_log_range,
    check_mode,
    check_no_record_layout,
    check_queue,
    modes_of,
    move_layout,
)
from spark_queue.options.declaration import option, option_error, part
from spark_queue.options.inputs import ALTS, LOG, QUEUE, ZIP, InputOptions, check_inputs, parse_inputs
from spark_queue.options.parsers import byte_size, count, count_or_auto, duration, flag, lease, one_of, target
from spark_queue.options.parts import (
    Content,
    Database,
    DeadLetters,
    Guarantee,
    LogStart,
    Outcomes,
    QueueReading,
    consumer_option,
    queue_option,
)
from spark_queue.options.values import AT_LEAST_ONCE, AT_MOST_ONCE, AUTO, FAIL, IGNORE, MAX_COUNT, WARN, Role


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of a streaming read of one queue, or of several `inputs`.

    `single_queue`: the option `queue`. Durations are in ms, and `None` is not set
    (`reserve_timeout`: never).
    """

    database: Database = part(Database)
    reading: QueueReading = part(QueueReading)
    log: LogStart = part(LogStart)
    guarantee: Guarantee = part(Guarantee)
    outcomes: Outcomes = part(Outcomes)
    dead_letters: DeadLetters = part(DeadLetters)
    content: Content = part(Content)
    single_queue: str | None = queue_option(None, key="queue")
    consumer: str | None = consumer_option(None)
    inputs: Mapping[str, InputOptions] | None = option(
        parse_inputs,
        "Instead of `queue`, [several queues read together](inputs.md): a JSON object by column, such as "
        '`{"order": {"queue": "orders"}, "price": {"queue": "prices", "ns": "market"}}`.',
        after="queue",
    )
    combine: str = option(
        one_of(ZIP, ALTS),
        "How `inputs` become rows. `zip`: each row has one message of every input, the n-th of each. `alts`: each "
        "micro-batch has messages of one input, the first in order that is not empty.",
        ZIP,
    )
    retention: int | None = option(
        duration,
        "With `mode=log`: the age at which messages are removed, even if a query has not read them yet.",
        shown="unlimited (remove with `spark-queue log trim`)",
        after="ending_timestamp",
        mode=LOG,
    )
    max_records_per_trigger: int | None = option(
        count_or_auto,
        "Maximum number of messages per micro-batch. `auto` finds the number that "
        "[takes `targetBatchDuration`](options.md#batches-that-find-their-size).",
        shown="`auto`",
        after="consumer",
    )
    max_bytes_per_trigger: int | None = option(
        byte_size,
        "Maximum bytes of messages per micro-batch, such as `64m`. A batch has at least one message.",
        shown="64 MB for each partition; none if `maxRecordsPerTrigger` is a number",
    )
    target_batch_duration: int = option(
        target, "With `maxRecordsPerTrigger=auto`: how long a micro-batch may take.", 2_000, "2s"
    )
    min_partitions: int | None = option(
        count,
        "Minimum number of partitions per micro-batch, if there are as many messages: for slow work.",
        shown="none: a partition has at least 500 messages, unless it is the only one",
        after="num_partitions",
    )
    reserve_ahead: bool = option(
        flag,
        "Whether a query reserves the next micro-batch while Spark processes the last one, if there is a backlog.",
        True,
        mode=QUEUE,
    )
    reserve_timeout: int | None = option(
        lease,
        "The lease: how long a reservation lasts after its query died. A running query renews it. "
        "`never`: until commit, rollback or release.",
        120_000,
        "120s with `delivery=at-least-once`, else `never`",
        mode=QUEUE,
    )
    on_unread: str = option(
        one_of(WARN, FAIL, IGNORE),
        "What happens if a query [has not read](unread.md) all messages of a batch, with `limit` for example: `warn` "
        "(the batch is committed), `fail` the query (the batch is not), or `ignore`.",
        WARN,
        after="replay_check",
    )
    isolate_failures: bool = option(
        flag,
        "Whether a batch that fails repeatedly is split until the failing message is isolated. That message is "
        "retried after a delay, or moves to the dead-letter queue after `maxTries`.",
        False,
        shown="`true` with `delivery=at-least-once`",
        after="max_tries",
        mode=QUEUE,
    )
    retry_delay: int = option(
        duration,
        "Delay before the next try of an isolated message. It doubles after each try.",
        1_000,
        "1s",
        mode=QUEUE,
    )
    wait_timeout: int = option(
        duration,
        "How long an idle trigger waits for a message before it ends without a batch.",
        1_000,
        "1s",
        after="dead_letter_queue",
    )

    @classmethod
    def resolve(cls, chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
        """Set the defaults of one option that follow from another. `roles`: for errors.

        Raises `OptionError` if an option is missing, or contradicts another one.
        """
        check_database(chosen)
        if "inputs" not in chosen:
            check_queue(chosen)
        _check_partitions(chosen)
        check_mode(cls, chosen)
        if chosen.get("on_unread") == FAIL and QUEUE not in modes_of(chosen):
            why = f"is {FAIL!r}, but mode={LOG} removes no messages: leave it out. A new checkpoint reads them again"
            raise option_error("onUnread", why)
        check_log_range(chosen)
        _resolve_inputs(chosen)
        check_dead_letters(chosen)
        _resolve_delivery(chosen)
        check_no_record_layout(chosen, roles)
        move_layout(chosen)
        if "target_batch_duration" in chosen and chosen.get("max_records_per_trigger") is not None:
            raise option_error("targetBatchDuration", f"needs maxRecordsPerTrigger={AUTO}: leave one of them out")

    @property
    def queue(self) -> str:
        """The queue that it reads. With `inputs` there is none: use `for_input` then."""
        assert self.single_queue is not None, "with inputs, each has a queue: use for_input"
        return self.single_queue

    @property
    def each_queue(self) -> Iterator[StreamOptions]:
        """The options of each queue that it reads."""
        if self.inputs is None:
            yield self
        else:
            yield from map(self.for_input, self.inputs)

    def queues_in(self, ns: str) -> list[tuple[str, str]]:
        """Return the queues that the options name in one of the databases, each with its mode."""
        found = [] if self.single_queue is None else [(self.single_queue, self.reading.mode)]
        found += [(one.queue, one.mode) for one in (self.inputs or {}).values() if (one.ns or "") == ns]
        return found + [(one, QUEUE) for one in self.dead_letters.named]

    def for_input(self, binding: str) -> StreamOptions:
        """Return the options of one of the inputs, as if it were read alone."""
        assert self.inputs is not None
        one = self.inputs[binding]
        return replace(
            self,
            database=self.database.only(one.ns),
            reading=replace(self.reading, mode=one.mode),
            single_queue=one.queue,
            inputs=None,
            combine=ZIP,
        )


def _check_partitions(chosen: Mapping[str, Any]) -> None:
    minimum, maximum = chosen.get("min_partitions", 0), chosen.get("num_partitions", MAX_COUNT)
    if minimum > maximum:
        why = f"is {minimum} but must not exceed 'numPartitions', which is {maximum}"
        raise option_error("minPartitions", why)


def _resolve_inputs(chosen: dict[str, Any]) -> None:
    inputs: dict[str, InputOptions] | None = chosen.get("inputs")
    if inputs is None:
        if "combine" in chosen:
            raise option_error("combine", "is for several queues: set 'inputs' too")
        if "urls" in chosen:
            raise option_error("urls", "is for several queues: set 'inputs' too, or 'url'")
        return
    if "queue" in chosen:
        raise OptionError("options 'queue' and 'inputs' exclude each other: set one of them", option="inputs")
    if "mode" in chosen:
        raise option_error("mode", "is for one queue: set it in each of the 'inputs'")
    check_inputs(inputs, chosen.get("urls", {}))
    if len(inputs) > 1 and chosen.setdefault("isolate_failures", False):
        why = "messages of several inputs belong together, and are not retried separately"
        raise option_error("isolateFailures", f"is for one queue: {why}; leave it out")
    if len(inputs) > 1 and chosen.get("reserve_ahead"):
        why = "the size of a batch of several inputs is not known before it begins"
        raise option_error("reserveAhead", f"is for one queue: {why}; leave it out")


def _resolve_delivery(chosen: dict[str, Any]) -> None:
    delivery = chosen.setdefault("delivery", AT_LEAST_ONCE)
    chosen.setdefault("isolate_failures", delivery == AT_LEAST_ONCE)
    if delivery != AT_LEAST_ONCE and chosen.setdefault("reserve_timeout", None) is not None:
        raise option_error(
            "reserveTimeout",
            f"contradicts delivery={delivery}, whose reservations never time out; leave it out, or set "
            f"delivery={AT_LEAST_ONCE}",
        )
    if chosen["isolate_failures"] and delivery == AT_MOST_ONCE:
        why = f"contradicts delivery={AT_MOST_ONCE}, which tries each message once; leave it out"
        raise option_error("isolateFailures", why)
