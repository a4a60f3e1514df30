"""The options of `format("queue")`: strings in, one frozen object out, parsed once and on the driver."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, Self

from spark_queue.address import Address
from spark_queue.buckets import LARGEST, Buckets, Layout
from spark_queue.errors import OptionError, near
from spark_queue.inputs import ALTS, LOG, QUEUE, ZIP, Input, check_apart, parse_inputs
from spark_queue.masking import HIDDEN, mask, quoted, shown_as
from spark_queue.queue_names import dead_letter_queue

#: What a DataFrame made with `format("queue")` does.
Role = Literal["stream", "snapshot", "push", "settle"]

READERS: tuple[Role, ...] = ("stream", "snapshot")
EVERYONE: tuple[Role, ...] = ("stream", "snapshot", "push", "settle")

#: Options that Spark itself adds to those of the user.
SPARK_OWN = frozenset({"checkpointlocation", "queryname", "numrows", "truncate"})

NEVER = "never"
EARLIEST, LATEST = "earliest", "latest"
SINGLE, BUCKET = "single", "bucket"
AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE = "at-least-once", "at-most-once", "exactly-once"
LARGEST_COUNT = 2**31 - 1
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPELLED = {
    "millisecond": "ms", "milliseconds": "ms", "second": "s", "seconds": "s", "sec": "s", "secs": "s",
    "minute": "m", "minutes": "m", "min": "m", "mins": "m", "hour": "h", "hours": "h", "day": "d", "days": "d",
}  # fmt: skip
_ISO = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,100}")


def duration(text: str) -> int:
    """Milliseconds of a duration such as `500ms`, `30s`, `2 minutes`, `1.5h`, `7d`, or `PT1H30M` as ISO 8601 has it.

    Raises `ValueError`. Years and months are none: they are not equally long.
    """
    if (iso := _ISO.fullmatch(text.strip())) and iso.lastindex:
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return round(1000 * (((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60 + seconds))
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", text)
    unit = _SPELLED.get(match[2].lower(), match[2].lower()) if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError("a duration such as 500ms, 30s, 2m, 1h or 7d")
    return round(float(match[1]) * _UNITS[unit])


def _lease(text: str) -> int | None:
    if text.strip().lower() == NEVER:
        return None
    try:
        lease = duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {NEVER!r}") from None
    if lease < 100:
        raise ValueError("at least 100ms")
    return lease


def _count(text: str) -> int:
    if not re.fullmatch(r"\s*\+?\d+\s*", text) or not 0 < int(text) <= LARGEST_COUNT:
        raise ValueError("a whole number from 1 to 2147483647")
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    spelled = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        word = spelled.get(text.strip().lower())
        if word is None:
            raise ValueError("one of " + ", ".join(words) + near(text, words))
        return word

    return parse


def _word(text: str) -> str:
    return _text(text).strip().lower()


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _bucket_size(text: str) -> int:
    size = _count(text)
    if size > LARGEST:
        raise ValueError(f"at most {LARGEST}")
    return size


def _batch(text: str) -> int:
    if not re.fullmatch(r"\s*\d+\s*", text) or int(text) >= 2**63:
        raise ValueError("a whole number from 0")
    return int(text)


def name_of_consumer(text: str) -> str:
    """A consumer's name: it becomes part of tags.

    Raises `ValueError`.
    """
    if not _NAME.fullmatch(text):
        raise ValueError("1 to 100 letters, digits and _ . : @ -")
    return text


def name_of_holder(text: str) -> str:
    """The same, of one who reserves: not that under which logs hold what they retain.

    Raises `ValueError`.
    """
    if text == LOG:
        raise ValueError(f"another name than {LOG!r}, under which logs hold what they retain")
    return name_of_consumer(text)


def _urls(text: str) -> dict[str, str]:
    try:
        urls = json.loads(text)
    except ValueError:
        urls = None
    if not isinstance(urls, dict) or not urls or not all(isinstance(one, str) and one for one in urls.values()):
        raise ValueError('a JSON object such as {"one": "sqlite:///queues.db", "two": "redis://localhost/0"}')
    return urls


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("not empty")
    return text


def _option(
    parse: Callable[[str], Any], roles: Iterable[Role], doc: str, default: Any = MISSING, shown: str = ""
) -> Any:
    return field(
        default=default, metadata={"parse": parse, "roles": tuple(roles), "doc": doc, "default": shown or default}
    )


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Every option, typed.

    Durations are milliseconds; `None` means not set (`reserve_timeout`: never). An option is spelled in camel
    case, and letter case is ignored.
    """

    url: str = _option(
        _text, EVERYONE, "`sqlite:///path/queues.db`, `mongodb://…/db` or `redis://…/0`", shown="required"
    )
    urls: Mapping[str, str] | None = _option(
        _urls, ("stream", "push"),
        "Instead of `url`, several databases: a JSON object of URLs by name. A row names its database in the column "
        "`ns`, one of the `inputs` in its `ns`.",
        None, "none",
    )  # fmt: skip
    queue: str | None = _option(
        _text,
        EVERYONE,
        "Name of the queue. Required to read. In a write it overrides the column `queue`.",
        None,
        "none",
    )
    inputs: Mapping[str, Input] | None = _option(
        parse_inputs, ("stream",),
        "Instead of `queue`, [several queues read together](inputs.md): a JSON object by column, such as "
        '`{"order": {"queue": "orders"}, "price": {"queue": "prices", "ns": "market"}}`.',
        None, "none",
    )  # fmt: skip
    combine: str = _option(
        _one_of(ZIP, ALTS), ("stream",),
        "How `inputs` become rows. `zip`: each row has one message of every input, the n-th of each. `alts`: each "
        "micro-batch has messages of one input, the first in order that is not empty.",
        ZIP,
    )  # fmt: skip
    fail_if_missing: bool | None = _option(
        _flag, READERS,
        "Whether to fail if the queue does not exist. A stream that goes on warns once, and waits for the first "
        "message.",
        None, "`true` in a batch read, `false` in a stream",
    )  # fmt: skip
    mode: str = _option(
        _one_of(QUEUE, LOG), READERS,
        "`queue`: each message goes to one reader and is then removed. `log`: messages are kept, and each query "
        "reads all of them; its checkpoint has its position. A batch read returns the retained messages.",
        QUEUE,
    )  # fmt: skip
    starting_offsets: str = _option(
        _one_of(EARLIEST, LATEST), ("stream",),
        "With `mode=log`, where a query with a new checkpoint starts: at the first retained message, or after the "
        "last one.",
        EARLIEST,
    )  # fmt: skip
    retention: int | None = _option(
        duration, ("stream",),
        "With `mode=log`: older messages are removed, also if a query has not read them yet.",
        None, "unlimited (remove with `spark-queue log trim`)",
    )  # fmt: skip
    fail_on_data_loss: bool = _option(
        _flag, READERS,
        "With `mode=log`: whether a query fails if its next message was removed, or goes on at the first retained "
        "message.",
        True, "`true`",
    )  # fmt: skip
    consumer: str | None = _option(
        name_of_holder, ("stream", "settle"),
        "Name of the consumer, which the tools show and which `settle` needs.",
        None, "generated, and kept in the checkpoint",
    )  # fmt: skip
    max_records_per_trigger: int = _option(_count, ("stream",), "Maximum number of messages per micro-batch.", 10_000)
    num_partitions: int | None = _option(
        _count,
        ("stream",),
        "Maximum number of partitions per micro-batch. There are fewer if there are few messages.",
        None,
        "cores of the driver",
    )
    min_partitions: int | None = _option(
        _count, ("stream",),
        "Minimum number of partitions per micro-batch, if there are as many messages: for slow work.",
        None, "none: a partition has at least 500 messages, unless it is the only one",
    )  # fmt: skip
    reserve_ahead: bool = _option(
        _flag, ("stream",),
        "Whether a query reserves the next micro-batch while Spark processes the last one, if there is a backlog.",
        True, "`true`",
    )  # fmt: skip
    reserve_timeout: int | None = _option(
        _lease, ("stream",),
        "The lease: how long a reservation lasts after the query died. A running query renews it. "
        "`never`: until commit, rollback or release.",
        120_000, "120s with `delivery=at-least-once`, else `never`",
    )  # fmt: skip
    delivery: str = _option(
        _one_of(AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE), ("stream", "push"), "Delivery guarantee.",
        AT_LEAST_ONCE, "`at-least-once` to read, `exactly-once` to write",
    )  # fmt: skip
    allow_eviction: bool = _option(
        _flag, ("stream", "push"),
        "Whether `delivery=exactly-once` may use a Redis that throws messages away when its memory is full "
        "(`maxmemory-policy` is `allkeys-…`). Messages can be lost then.",
        False, "`false`",
    )  # fmt: skip
    txn_app_id: str | None = _option(
        name_of_consumer, ("push",),
        "In a batch write: name of the writer. With `txnVersion`, a repeated write (in `foreachBatch`, for example) "
        "is skipped.",
        None, "none",
    )  # fmt: skip
    txn_version: int | None = _option(
        _batch,
        ("push",),
        "In a batch write: its number. It grows with each write of this `txnAppId`.",
        None,
        "none",
    )
    replay_check: str = _option(
        _one_of("rows", "none"), ("push",),
        "With `delivery=exactly-once`: what is checked of a batch that is written and comes again, after a restart "
        "for example. `rows`: each row must be among those written, else the query fails. `none`: nothing, for a "
        "query that makes other rows each time (random values, the clock).",
        "rows",
    )  # fmt: skip
    max_tries: int | None = _option(
        _count,
        ("stream", "settle"),
        "Number of failed tries after which a message moves to the dead-letter queue.",
        None,
        "none",
    )
    isolate_failures: bool | None = _option(
        _flag, ("stream",),
        "Whether a batch that fails repeatedly is split until the failing message is isolated. That one is tried "
        "again after a delay, or goes to the dead-letter queue after `maxTries`.",
        None, "`true` with `delivery=at-least-once`",
    )  # fmt: skip
    retry_delay: int = _option(
        duration, ("stream",),
        "Delay before the next try of an isolated message. It doubles after each try.", 1_000, "1s",
    )  # fmt: skip
    dead_letter_queue: str | None = _option(
        _text,
        ("stream", "push", "settle"),
        "Queue for messages that failed `maxTries` times, or that were declared dead.",
        None,
        "`<queue>.dead`",
    )
    wait_timeout: int = _option(
        duration, ("stream",), "How long an idle trigger waits for a message before it ends without a batch.",
        1_000, "1s",
    )  # fmt: skip
    retry_timeout: int = _option(
        duration,
        EVERYONE,
        "How long to retry while the database cannot be reached. Then the query fails, and loses nothing.",
        30_000,
        "30s",
    )
    history: int | None = _option(
        duration, ("stream", "settle"),
        "How long committed and dead-lettered messages are kept. Read them with `view=history`.",
        None, "`0s`; in `settle`, that of the stream of this `consumer`",
    )  # fmt: skip
    payload_format: str | None = _option(
        _one_of("json", "text", "binary", "variant"), EVERYONE,
        "Content of the column `payload`: JSON text, plain text, bytes, or a VARIANT.",
        None, "`json`; in a write, by the column's type",
    )  # fmt: skip
    view: str = _option(
        _one_of("messages", "history"), ("snapshot",),
        "What a batch read returns: the messages in the queue, or the processed ones.",
        "messages",
    )  # fmt: skip
    layout: str | None = _option(
        _word, EVERYONE,
        "In a write: `single` puts each message in its own record of the database, `bucket` thousands of messages "
        "in one record, which is many times as fast. A queue may hold both. Or the layout of keuss or rfq, as in the "
        "URL.",
        None, "the queue's own setting, else `single`",
    )  # fmt: skip
    bucket_size: int | None = _option(
        _bucket_size, ("push",), "Maximum number of messages in one bucket.", None, "4096"
    )
    compression: str | None = _option(_one_of("lz4", "zstd"), ("push",), "Compression of buckets.", None, "`lz4`")
    on_bad_row: str = _option(
        _one_of("fail", "deadLetter"), ("push", "settle"),
        "What happens to a row that cannot become a message: `fail` the write, or move the row to the dead-letter "
        "queue, with the reason in header `x-error`.",
        "fail",
    )  # fmt: skip
    operation: str = _option(
        _one_of("push", "settle"), ("push", "settle"),
        "What a write does: push messages, or decide the outcome of single messages that a query has reserved.",
        "push",
    )  # fmt: skip

    @classmethod
    def parse(cls, raw: Mapping[str, str], *roles: Role) -> Self:
        """The options of a DataFrame that does one of these `roles`.

        Raises `OptionError` at the first option that cannot be meant.
        """
        known = {spelled(one): one for one in fields(cls)}
        by_key = {name.lower(): name for name in known}
        chosen: dict[str, Any] = {}
        for key, text in raw.items():
            if key.lower() in SPARK_OWN:
                continue
            name = by_key.get(key.lower())
            if name is None:
                hint = near(key, known) or f"; known are {', '.join(sorted(known))}"
                if key.lower() == "path":
                    hint = "; a queue has no path: set the options 'url' and 'queue'"
                raise OptionError(f"unknown option {quoted(key)}{hint}", option=shown_as(key))
            option = known[name]
            if not set(roles) & set(option.metadata["roles"]):
                doing = " or ".join(_DOING[role] for role in roles)
                raise OptionError(f"option {name!r} is not for {doing}: leave it out", option=name)
            try:
                chosen[option.name] = option.metadata["parse"](str(text))
            except ValueError as error:
                shown = HIDDEN if name in ("url", "urls") else quoted(str(text))
                raise OptionError(f"option {name!r} is {shown} but must be {error}", option=name) from None
        if "urls" in chosen:
            if "url" in chosen:
                raise OptionError("options 'url' and 'urls' exclude each other: set one of them", option="urls")
            chosen["url"] = ""
        if "url" not in chosen:
            raise OptionError("option 'url' is missing: set it, to sqlite:///queues.db for example", option="url")
        if "push" not in roles and "queue" not in chosen and "inputs" not in chosen:
            raise OptionError("option 'queue' is missing: set it to the name of the queue", option="queue")
        if "settle" in roles and "consumer" not in chosen:
            raise OptionError(
                "option 'consumer' is missing: settle needs the consumer whose messages it settles", option="consumer"
            )
        if chosen.get("min_partitions", 0) > chosen.get("num_partitions", LARGEST_COUNT):
            raise OptionError(
                f"option 'minPartitions' is {chosen['min_partitions']} but must not exceed 'numPartitions', which is "
                f"{chosen['num_partitions']}",
                option="minPartitions",
            )
        _check_mode(cls, chosen)
        _resolve_inputs(chosen, roles)
        chosen.setdefault("fail_if_missing", roles == ("snapshot",))
        _resolve_delivery(chosen, roles)
        _resolve_layout(chosen, roles)
        if chosen.get("layout") != BUCKET:
            for name in ("bucket_size", "compression"):
                if name in chosen:
                    shown = spelled(next(one for one in fields(cls) if one.name == name))
                    raise OptionError(f"option {shown!r} needs layout={BUCKET}: set that too", option=shown)
        return cls(**chosen)

    def partitions(self, cores: int) -> tuple[int, int]:
        """The most partitions of a batch, where the driver has so many cores, and how many there are at least."""
        least = self.min_partitions or 1
        return self.num_partitions or max(cores, least), least

    def __repr__(self) -> str:
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        told |= {
            "url": self.url and mask(self.url),
            "urls": self.urls and {name: mask(url) for name, url in self.urls.items()},
        }
        return f"QueueOptions({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    @property
    def history_ms(self) -> int:
        """For how many ms processed messages are kept; 0 unless set."""
        return self.history or 0

    @property
    def record_layout(self) -> Layout:
        """How a write lays out messages in records."""
        if self.layout == BUCKET:
            usual = Buckets()
            return Buckets(self.bucket_size or usual.size, self.compression or usual.compression)
        return "single" if self.layout else None

    def of(self, binding: str) -> QueueOptions:
        """The options of one of the inputs, as if it were read alone."""
        one = (self.inputs or {})[binding]
        url = self.url if self.urls is None else self.urls[one.ns or ""]
        return replace(self, url=url, urls=None, queue=one.queue, mode=one.mode, inputs=None, combine=ZIP)

    def dead(self, queue: str) -> str:
        """The dead-letter queue of `queue`."""
        return self.dead_letter_queue or dead_letter_queue(queue)


def _resolve_inputs(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Refuse what contradicts the inputs, and fill in what follows from them."""
    inputs: dict[str, Input] | None = chosen.get("inputs")
    if inputs is None:
        if "combine" in chosen:
            raise OptionError("option 'combine' is for several queues: set 'inputs' too", option="combine")
        if "urls" in chosen and "push" not in roles:
            raise OptionError("option 'urls' is for several queues: set 'inputs' too, or 'url'", option="urls")
        return
    if "queue" in chosen:
        raise OptionError("options 'queue' and 'inputs' exclude each other: set one of them", option="inputs")
    if "mode" in chosen:
        raise OptionError("option 'mode' is for one queue: set it in each of the 'inputs'", option="mode")
    urls: Mapping[str, str] = chosen.get("urls", {})
    for binding, one in inputs.items():
        if one.ns is None and urls:
            raise OptionError(
                f"option 'inputs': {binding!r} has no 'ns', which names its database in 'urls'", option="inputs"
            )
        if one.ns is not None and one.ns not in urls:
            hint = near(one.ns, urls) or (f"; it has {', '.join(urls)}" if urls else "; set it")
            raise OptionError(
                f"option 'inputs': {binding!r} has the ns {one.ns!r}, which option 'urls' does not name{hint}",
                option="inputs",
            )
    try:
        check_apart(inputs, urls)
    except ValueError as error:
        raise OptionError(f"option 'inputs' must be {error}", option="inputs") from None
    if len(inputs) > 1 and chosen.setdefault("isolate_failures", False):
        raise OptionError(
            "option 'isolateFailures' is for one queue: messages of several inputs belong together, and are not "
            "tried apart",
            option="isolateFailures",
        )
    if len(inputs) > 1 and "reserve_ahead" in chosen and chosen["reserve_ahead"]:
        raise OptionError(
            "option 'reserveAhead' is for one queue: how much a batch of several inputs takes is known when it "
            "begins",
            option="reserveAhead",
        )


#: Options of reservations, which there are none of in a log, and those of logs.
_OF_QUEUES = (
    "reserve_ahead", "reserve_timeout", "max_tries", "isolate_failures", "retry_delay", "dead_letter_queue",
    "history", "view",
)  # fmt: skip
_OF_LOGS = ("starting_offsets", "retention", "fail_on_data_loss")


def _check_mode(cls: type[QueueOptions], chosen: Mapping[str, Any]) -> None:
    """Refuse options that the other mode has."""
    modes = {one.mode for one in (chosen.get("inputs") or {}).values()} or {chosen.get("mode", QUEUE)}
    for option in fields(cls):
        shown = spelled(option)
        if option.name in chosen and option.name in _OF_QUEUES and QUEUE not in modes:
            why = f"cannot be used with mode={LOG}, where nothing is reserved: leave it out"
            raise OptionError(f"option {shown!r} {why}", option=shown)
        if option.name in chosen and option.name in _OF_LOGS and LOG not in modes:
            raise OptionError(f"option {shown!r} needs mode={LOG}: set that too", option=shown)


def _resolve_delivery(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Fill in what follows from the delivery, and refuse what contradicts it."""
    delivery = chosen.setdefault("delivery", EXACTLY_ONCE if "push" in roles else AT_LEAST_ONCE)
    chosen.setdefault("isolate_failures", delivery == AT_LEAST_ONCE)
    if delivery != AT_LEAST_ONCE and chosen.setdefault("reserve_timeout", None) is not None:
        raise OptionError(
            f"option 'reserveTimeout' contradicts delivery={delivery}: there a reservation never ends by itself; "
            f"leave it out, or set delivery={AT_LEAST_ONCE}",
            option="reserveTimeout",
        )
    if chosen["isolate_failures"] and delivery == AT_MOST_ONCE:
        raise OptionError(
            "option 'isolateFailures' contradicts delivery=at-most-once, which gives no message a second try",
            option="isolateFailures",
        )
    given = [name for name in ("txn_app_id", "txn_version") if name in chosen]
    if len(given) == 1:
        raise OptionError("options 'txnAppId' and 'txnVersion' go together: set both or neither", option="txnAppId")
    for name, shown in (("txn_app_id", "txnAppId"), ("replay_check", "replayCheck")):
        if name in chosen and delivery != EXACTLY_ONCE:
            raise OptionError(f"option {shown!r} needs delivery={EXACTLY_ONCE}, not {delivery}", option=shown)


def _resolve_layout(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Put the layout of a database into its URL, where all that opens it sees it."""
    layout = chosen.get("layout")
    if layout in (SINGLE, BUCKET) and "push" not in roles:
        doing = " or ".join(_DOING[role] for role in roles)
        raise OptionError(f"option 'layout' is {layout!r}, which is not for {doing}", option="layout")
    if layout in (None, SINGLE, BUCKET):
        return
    if "urls" in chosen:
        raise OptionError(
            f"option 'layout' is {layout!r}: write ?layout={layout} into each of 'urls'", option="layout"
        )
    chosen["url"] = Address.of(chosen["url"]).in_layout(chosen.pop("layout"))


_DOING: dict[Role, str] = {
    "stream": "a streaming read",
    "snapshot": "a batch read",
    "push": "a write that pushes",
    "settle": "a write that settles",
}


def spelled(option: Field[Any]) -> str:
    """How users spell the option that is kept in this field: camel case."""
    head, *rest = option.name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def role_of_write(raw: Mapping[str, str]) -> Role:
    """Whether a write pushes or settles.

    Raises `OptionError`.
    """
    for key, text in raw.items():
        if key.lower() == "operation":
            try:
                return "settle" if _one_of("push", "settle")(text) == "settle" else "push"
            except ValueError as error:
                raise OptionError(f"option 'operation' is {quoted(text)} but must be {error}", option=key) from None
    return "push"


def table() -> str:
    """The options as a Markdown table, as the README shows it."""
    rows = ["| option | default | goes with | meaning |", "|---|---|---|---|"]
    for option in fields(QueueOptions):
        facts = option.metadata
        default = str(facts["default"])
        default = (
            f"`{default}`" if re.fullmatch(r"[\w-]+", default) and default not in ("required", "none") else default
        )
        rows.append(f"| `{spelled(option)}` | {default} | {', '.join(facts['roles'])} | {facts['doc']} |")
    return "\n".join(rows)
