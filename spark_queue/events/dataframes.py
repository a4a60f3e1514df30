"""Events and DataFrames: turn rows into events, and read events as rows.

sink = as_messages(df).write.format("queue").mode("append")
sink.option("url", url).option("queue", "events").save()
view(spark, url, "events", "status").groupBy("status").count()
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Literal

from spark_queue.errors import OptionError, SchemaError, did_you_mean
from spark_queue.events import status as held
from spark_queue.events.audit_log import current_user, log_queue_name
from spark_queue.events.event import MAX_URIS, PRIORITY_LEAD_MS, STATUSES, new_transaction
from spark_queue.events.queue import check_layout
from spark_queue.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The views of a queue of events.
EventView = Literal["queue", "status", "uris", "log"]

#: The folder of hub-queue's documents of events, in the columns `uri` and `event_uri`.
DOCUMENT_FOLDER = "/noslogan.org/hub-queue/queue/"

_COLUMNS = ("id", "source", "type", "payload", "uris", "priority", "user", "host")

_EVENT_SCHEMA = (
    "source STRING, type STRING, payload STRING, kind STRING, uris ARRAY<STRING>, priority BOOLEAN, user STRING, "
    "host STRING, transaction STRING, created TIMESTAMP"
)
_RECORD_SCHEMA = (
    "message STRING, user STRING, host STRING, transaction STRING, ids ARRAY<STRING>, `from` STRING, `to` STRING, "
    "errors MAP<STRING, STRING>"
)


def as_messages(
    frame: DataFrame,
    *,
    max_uris: int = MAX_URIS,
    user: str | None = None,
    host: str | None = None,
    transaction: str | None = None,
) -> DataFrame:
    """Return rows as messages of a queue of events, for the sink `format("queue")`.

    Required columns: `source`, `type`. Optional columns: `id`, `payload` (STRUCT or MAP: an object;
    ARRAY: a list; others: a single value, as text), `uris` (ARRAY<STRING>), `priority`, `user`,
    `host`. A row with more than `max_uris` URIs becomes several events. A row with an empty `uris`
    becomes none, and one with NULL becomes an event without URIs.

    The creation time is by Spark's clock. All events have the same `transaction`, by default a new
    one. Raises `SchemaError` for other columns; the query fails for an empty or NULL source or
    type.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    kinds = {one.name: one.dataType for one in frame.schema}
    for name in frame.columns:
        if name not in _COLUMNS:
            raise SchemaError(f"events have no column {name!r}{did_you_mean(name, _COLUMNS)}", column=name)
    for name in ("source", "type"):
        if name not in kinds:
            raise SchemaError(f"events need the column {name!r}; there are {', '.join(kinds)}", column=name)
    if "uris" in kinds:
        if "id" in kinds:
            raise SchemaError("rows with uris become any number of events, so they cannot have ids", column="id")
        uris = F.col("uris")
        starts = F.sequence(F.lit(1), F.greatest(F.lit(1), F.size(uris)), F.lit(max_uris))
        parts = F.transform(starts, lambda start: F.slice(uris, start, max_uris))
        whole = F.when(uris.isNull(), F.array(F.array().cast("array<string>"))).otherwise(parts)
        frame = frame.where(uris.isNull() | (F.size(uris) > 0)).withColumn("uris", F.explode(whole))

    def text(name: str, usual: str) -> Column:
        return F.coalesce(F.col(name).cast("string"), F.lit(usual)) if name in kinds else F.lit(usual)

    def required(name: str) -> Column:
        column = F.col(name).cast("string")
        return F.when(F.length(column) > 0, column).otherwise(F.raise_error(f"an event has no {name}"))

    kind = kinds.get("payload")
    payload = F.lit(None) if kind is None else F.col("payload")
    if isinstance(kind, StructType | MapType):
        kind_name = "map"
    elif isinstance(kind, ArrayType):
        kind_name = "array"
    else:
        kind_name, payload = "atomic", payload.cast("string")
    priority = F.coalesce(F.col("priority"), F.lit(False)) if "priority" in kinds else F.lit(False)
    created = F.current_timestamp()
    document = F.struct(
        required("source").alias("source"),
        required("type").alias("type"),
        payload.alias("payload"),
        F.when(payload.isNull(), "none").otherwise(kind_name).alias("kind"),
        (F.col("uris") if "uris" in kinds else F.array().cast("array<string>")).alias("uris"),
        priority.alias("priority"),
        text("user", current_user() if user is None else user).alias("user"),
        text("host", socket.gethostname() if host is None else host).alias("host"),
        F.lit(new_transaction() if transaction is None else transaction).alias("transaction"),
        created.alias("created"),
    )
    ahead = F.timestamp_millis(F.unix_millis(created) - F.lit(PRIORITY_LEAD_MS))
    ids = [F.col("id")] if "id" in kinds else []
    json_options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "ignoreNullFields": "false"}
    return frame.select(
        *ids, F.to_json(document, json_options).alias("payload"), F.when(priority, ahead).alias("mature")
    )


def view(spark: SparkSession, url: str, queue: str, what: EventView, **options: str) -> DataFrame:
    """Return the events of a queue as rows; `options` are those of `format("queue")`.

    The views and their columns:

    * `queue`: id, uri, created, priority, type, source, transaction, user, source_host, kind,
      payload, tries.
    * `status`: id, status, updated.
    * `uris`: id, uri, event_uri, created, type, source, transaction, source_host.
    * `log`: timestamp, message, user, host, transaction, ids, from, to, errors.

    `status` reads reservations when you call it, and the rest when the rows are read. An event that
    changes in between may be missing or appear twice. Raises `OptionError` for an unknown view.
    """
    from pyspark.sql import functions as F

    if what not in (views := ("queue", "status", "uris", "log")):
        raise OptionError(
            f"there is no view {what!r}{did_you_mean(what, views) or '; there are ' + ', '.join(views)}"
        )

    def read(name: str, **more: str) -> DataFrame:
        reader = spark.read.format("queue").options(**options | {"url": url, "queue": name} | more)
        return reader.load()

    if what == "log":
        parsed = F.from_json("payload", _RECORD_SCHEMA)
        return (
            read(log_queue_name(queue))
            .select(F.col("mature").alias("timestamp"), parsed.alias("record"))
            .select("timestamp", "record.*")
        )
    living, past = read(queue), read(queue, view="history")
    if what == "status":
        return _status_view(spark, url, queue, living, past)
    columns = ("id", "payload", "tries")
    parsed = F.from_json("payload", _EVENT_SCHEMA)
    both = living.select(*columns).unionByName(past.select(*columns)).select("id", "tries", parsed.alias("e"))
    document = F.concat(F.lit(DOCUMENT_FOLDER), "id", F.lit(".xml"))
    host = F.col("e.host").alias("source_host")
    if what == "uris":
        common = [f"e.{name}" for name in ("created", "type", "source", "transaction")]
        return both.select("id", F.explode("e.uris").alias("uri"), document.alias("event_uri"), *common, host)
    facts = [f"e.{name}" for name in ("created", "priority", "type", "source", "transaction", "user")]
    return both.select("id", document.alias("uri"), *facts, host, "e.kind", "e.payload", "tries")


def _status_view(spark: SparkSession, url: str, queue: str, living: DataFrame, past: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    rows = []
    with open_store(url) as store:
        check_layout(store)
        for one in held.active_reservations(store, queue):
            moment = held.to_datetime(held.held_since(one.tag))
            rows += [(id, held.status_of(one.tag), moment) for id in store.held_ids(queue, one.tag)]
    taken = spark.createDataFrame(rows, "id STRING, held STRING, since TIMESTAMP")
    created = F.from_json("payload", _EVENT_SCHEMA)["created"]
    new = F.when(F.col("tries") == 0, created)
    now = (
        living.select("id", "tries", "payload")
        .join(F.broadcast(taken), "id", "left")
        .select(
            "id",
            F.coalesce("held", F.lit(STATUSES[0])).alias("status"),
            F.when(F.col("held").isNull(), new).otherwise(F.col("since")).alias("updated"),
        )
    )
    names = F.create_map(*(F.lit(one) for pair in held.STATUS_OF_OUTCOME.items() for one in pair))
    status = F.coalesce(F.try_element_at(names, F.col("outcome")), F.col("outcome"))
    return now.unionByName(past.select("id", status.alias("status"), F.col("processed").alias("updated")))
