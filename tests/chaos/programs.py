"""What is killed in the middle: `programs.py NAME '{"argument": value, …}'`.

Each writes a log of JSON lines: before an act that it is about to begin, and after the act was acknowledged. A line
is one write, which survives the process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from spark_queue import Queue, open_store
from spark_queue.errors import StoreUnavailable
from spark_queue.stores.services.ledger import ledger_of
from spark_queue.stores.types import DeadLetterInfo


def logger(path, sync=False):
    """What appends to a log. `sync`: it is on the disk when the call returns."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def log(**facts):
        os.write(file, json.dumps(facts).encode() + b"\n")
        if sync:
            os.fsync(file)

    return log


def drain(url, queue, folder, options):
    """A Spark query into Parquet, until what was ready at its start is through."""
    from pyspark.sql import SparkSession

    from spark_queue.spark import drain as drain_query

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it lives for seconds
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.sql.streaming.fileSink.log.compactInterval", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        spark.readStream.format("queue")
        .options(url=url, queue=queue, **options)
        .load()
        .select("id", "payload", "tries")
        .writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    drain_query(query, url)
    spark.stop()


def push(url, queue, log, producer, first, most, seed, delay=0.0):
    """Push numbered messages, batch after batch, from number `first` on."""
    rng, log = random.Random(seed), logger(log)
    with Queue(url, queue) as client:
        while True:
            numbers = range(first, first + rng.randint(1, most))
            log(did="begin", first=numbers[0], last=numbers[-1])
            payloads = [{"producer": producer, "n": n} for n in numbers]
            client.push_many(payloads, ids=[f"{producer}-{n}" for n in numbers])
            log(did="push", first=numbers[0], last=numbers[-1])
            first = numbers[-1] + 1
            time.sleep(delay)


def consume(url, queue, log, consumer, lease, seed):
    """Reserve and commit; now and then give back, or be late."""
    rng, log = random.Random(seed), logger(log)
    with Queue(url, queue, consumer=consumer, lease=lease) as client:
        while True:
            asked = time.monotonic()
            batch = client.reserve(rng.randint(1, 10), timeout=0.5)
            got, ids = time.monotonic(), [message.id for message in batch]
            if not batch:
                continue
            log(did="reserve", by=consumer, ids=ids, begun=asked, ended=got)
            fate = rng.random()
            if fate < 0.2:  # too late
                time.sleep(lease * rng.uniform(1.05, 1.4))
            else:  # slow enough to be overtaken by one that comes too late, or fast
                time.sleep(rng.uniform(0.4, 0.8) * lease if fate < 0.6 else rng.uniform(0, 0.02))
            if fate > 0.95:
                client.rollback(*batch)
                continue
            for message in batch:
                begun = time.monotonic()
                if client.commit(message):
                    log(did="commit", by=consumer, id=message.id, got=got, begun=begun, ended=time.monotonic())


def move(url, queue, to, log, seed):
    """Move everything to another queue: what is free, and dead letters out of reservations."""
    rng, log = random.Random(seed), logger(log)
    # A transaction of MongoDB that lost its client may stand in the way for a minute and more.
    with open_store(url, retry_timeout=120_000) as store:
        step = 0
        while store.sizes(queue).ready:
            step += 1
            limit = rng.randint(500, 3_000)
            log(did="begin", limit=limit)
            if rng.random() < 0.5:
                moved = store.move(queue, to, limit=limit)
            else:
                tag = f"mover/{os.getpid()}/{step}"
                store.reserve(queue, tag, limit, lease=1_000)
                moved = store.move(queue, to, tag=tag, dead_letter=DeadLetterInfo("chaos", failed=1))
            log(did="move", moved=moved)
    log(did="end")


def push_at_once(url, queue, log, rows):
    """One large batch after another."""
    log = logger(log)
    with Queue(url, queue) as client:
        log(did="start")
        for batch in range(1000):
            payloads = [{"batch": batch, "n": n, "pad": "x" * 100} for n in range(rows)]
            log(did="begin", batch=batch, at=time.monotonic())
            client.push_many(payloads)
            log(did="push", batch=batch, at=time.monotonic())


# --- the world of world.py ------------------------------------------------------------------------------------------

#: Seconds that a database may be away, or its file be locked by a process that stands still.
AWAY = 300

#: How long a query that writes to two databases waits for one that is away.
SHORT = "1s"

#: Messages that wait in a queue before its producers pause.
BACKLOG = 2_500

#: Seconds that what is committed stays in the history: longer than any world lives.
HISTORY = 7 * 86_400


def produce(url, queue, log, producer, seed, twin=None, first=0, client=None, behind=None):
    """Push messages `producer-0`, `producer-1`, …

    Nothing is ever pushed again: the outcome of a failed push is unknown, and its messages count as "maybe".
    The store gets no patience, so it does not push again by itself either. `twin`: URL and queue for the other half
    of each message, in the same order. `first`: the first number. `client`: that of the parent of this process.
    `behind`: URL and queue at the end, whose consumers may be slower than the query.
    """
    rng, log = random.Random(seed), logger(log, sync=True)
    with (
        open_store(url, retry_timeout=AWAY * 1000) as patient,
        open_store(behind[0], retry_timeout=AWAY * 1000) if behind else nullcontext() as last,
        client or Queue(open_store(url, retry_timeout=0), queue) as client,
        Queue(*twin) if twin else nullcontext() as other,
    ):
        while True:
            while patient.sizes(queue).ready > BACKLOG or (last and last.sizes(behind[1]).ready > BACKLOG):
                time.sleep(0.1)
            numbers = range(first, first + rng.randint(1, 200))
            first = numbers[-1] + 1
            log(did="begin", first=numbers[0], last=numbers[-1])
            try:
                client.push_many(
                    [{"producer": producer, "n": n} for n in numbers],
                    headers=[{"name": f"{producer}-{n}"} for n in numbers],
                )
                if other:
                    other.push_many([{"double": 2 * n} for n in numbers])
            except StoreUnavailable as error:
                log(did="fail", error=str(error))
            else:
                log(did="push", first=numbers[0], last=numbers[-1])


def doubled(batches):
    """The transformation of the query: `{"producer": …, "n": n}` becomes `{…, "double": 2 n}`.

    The double may be in the column `twin`. Every second message gets a new id at each run, so that nothing that comes
    twice is mistaken for what is there already; the others get theirs from the sink. The last of a hundred cannot
    become a message.
    """
    import pyarrow as pa

    for batch in batches:
        payloads = [json.loads(payload) for payload in batch.column("payload").to_pylist()]
        if "twin" in batch.schema.names:
            twins = [json.loads(twin) for twin in batch.column("twin").to_pylist()]
        else:
            twins = [{"double": 2 * one["n"]} for one in payloads]
        ids = [os.urandom(12).hex() if one["n"] % 2 else None for one in payloads]
        made = [
            None if one["n"] % 100 == 99 else json.dumps(one | twin)
            for one, twin in zip(payloads, twins, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(
            [pa.array(ids, pa.string()), pa.array(made, pa.string()), batch.column("headers")],
            names=["id", "payload", "headers"],
        )


def scatter(batches):
    """The same, with a database for each message that another run does not choose again."""
    import pyarrow as pa

    for batch in doubled(batches):
        chosen = [random.choice(["here", "there"]) for _ in range(batch.num_rows)]
        yield batch.append_column("ns", pa.array(chosen, pa.string()))


def move_with_spark(
    url, queue, to_url, to, checkpoint, log, master, sink, slow, source=None, twin=None, scattered=False
):
    """A query from queue to queue, started again whenever it fails, as long as its JVM lives.

    `source` are more options of the source. `twin`: the queue at `to_url` that has the other half of each message.
    `scattered`: each message goes to one of both databases.
    """
    from spark_queue.spark import supervise

    log = logger(log)
    spark = session(master, checkpoint)
    if slow:
        from tests.chaos.slow_motion import SlowQueue

        spark.dataSource.register(SlowQueue)
    format = "slow_queue" if slow else "queue"
    way = {"delivery": "exactly-once", "waitTimeout": "200ms", "maxRecordsPerTrigger": "800", "numPartitions": "2"}
    way |= source or {}
    if twin:
        inputs = {"one": {"queue": queue, "ns": "from"}, "two": {"queue": twin, "ns": "to"}}
        way |= {"inputs": json.dumps(inputs), "urls": json.dumps({"from": url, "to": to_url})}
        columns = ["one.payload AS payload", "one.headers AS headers", "two.payload AS twin"]
    else:
        way |= {"url": url, "queue": queue}
        columns = ["payload", "headers"]
    schema = "id STRING, payload STRING, headers MAP<STRING, STRING>"
    transformation = doubled
    if scattered:
        schema, transformation = f"{schema}, ns STRING", scatter
        way["retryTimeout"] = SHORT

    def target():
        if not scattered:
            return {"url": to_url}
        # The names of databases and their order do not matter: each start has others.
        names, urls = random.sample(["here", "there"], 2), random.sample([url, to_url], 2)
        return {"urls": json.dumps(dict(zip(names, urls, strict=True))), "replayCheck": "none", "retryTimeout": SHORT}

    def start():
        log(did="try")
        log(did="start", **place(checkpoint, to_url))
        return (
            spark.readStream.format(format)
            .options(**way)
            .load()
            .selectExpr(*columns)
            .mapInArrow(transformation, schema)
            .writeStream.format(format)
            .options(queue=to, onBadRow="deadLetter", **target(), **sink)
            .option("checkpointLocation", checkpoint)
            .start()
        )

    def logged():
        try:
            return start()
        except Exception as error:
            log(did="fail", error=str(error))
            raise

    supervise(logged, url, initial_backoff=0.1, max_backoff=0.5)


def route_with_spark(url, queue, to_url, to, checkpoint, log, master, slow):
    """The same by a graph of exchanges, with more destinations: odd numbers go to `b.odd` too, tens by `a.tens` to
    `b.tens`. The exchange that is looked at has its checkpoint at `checkpoint`, the other one beside it."""
    from spark_queue.graph.model import Changes, ConsumerSettings, Destination, Exchange, Graph, Namespace, Place
    from spark_queue.runner import ExchangeGraph

    log = logger(log)
    spark = session(master, checkpoint)
    if slow:
        from tests.chaos.slow_motion import SlowExchangeQueue

        spark.dataSource.register(SlowExchangeQueue)
    payload = "named_struct('producer', payload:producer, 'n', payload:n::int, 'double', 2 * payload:n::int)"
    way = {"consumer": ConsumerSettings(parallel=2, wsize=800), "options": {"waitTimeout": "200ms"}}
    odd = Destination("b.odd", "payload:n::int % 2 = 1", ns="b")
    tens = Destination("a.tens", "payload:n::int % 10 = 0")
    every = Destination(to, set=Changes(payload), ns="b")
    name = Path(checkpoint).name
    exchanges = {
        name: Exchange(Place(queue, "a"), [odd, tens, every], **way),
        "tens": Exchange(Place("a.tens", "a"), [Destination("b.tens", ns="b")], **way),
    }
    graph = Graph({"a": Namespace(url), "b": Namespace(to_url)}, exchanges)
    log(did="start", **place(checkpoint, to_url))
    running = ExchangeGraph(graph, str(Path(checkpoint).parent), initial_backoff=0.1, max_backoff=0.5).start(spark)
    end_with_error(running, log)


def process_with_spark(url, queue, to_url, to, checkpoint, log, master, slow):
    """Do the same with processors: a fork puts each message into two queues, beside A and beside B.

    A join takes the n-th message of one with the n-th of the other; they must be the same. The fork is watched.
    """
    from spark_queue.graph.model import ConsumerSettings, Graph, Input, Namespace, Place, Processor
    from spark_queue.runner import ExchangeGraph

    log = logger(log)
    spark = session(master, checkpoint)
    if slow:
        from tests.chaos.slow_motion import SlowExchangeQueue

        spark.dataSource.register(SlowExchangeQueue)

    def halves(process, messages):
        from spark_queue import Output

        (one,) = messages.values()
        double = {"double": 2 * one.payload["n"]}
        return {"single": one, "double": Output(double, {"name": one.headers["name"]})}

    def whole(process, messages):
        from spark_queue import Output

        single, double = messages["single"], messages["double"]
        if single.headers["name"] != double.headers["name"]:
            raise ValueError(f"{single.headers['name']} does not belong to {double.headers['name']}")
        made, n = Output(single.payload | double.payload, {"name": single.headers["name"]}), single.payload["n"]
        return {"every": made, "odd": made if n % 2 else None, "tens": made if n % 10 == 0 else None}

    way = {"consumer": ConsumerSettings(wsize=800), "options": {"waitTimeout": "200ms"}, "rows": True}
    name = Path(checkpoint).name
    middle = {"single": Input("a.tens", "a"), "double": Input("b.double", "b")}
    ends = {"every": Place(to, "b"), "odd": Place("b.odd", "b"), "tens": Place("b.tens", "b")}
    processors = {
        name: Processor(halves, in_={"all": Input(queue, "a")}, out=middle, **way),
        "join": Processor(whole, in_=middle, out=ends, **way),
    }
    graph = Graph({"a": Namespace(url), "b": Namespace(to_url)}, processors=processors)
    log(did="start", **place(checkpoint, to_url))
    running = ExchangeGraph(graph, str(Path(checkpoint).parent), initial_backoff=0.1, max_backoff=0.5).start(spark)
    end_with_error(running, log)


def end_with_error(running, log):
    """Wait until a step of a graph has ended, and end with its error."""
    while not running.await_termination(1):
        if any(one.state == "stopped" for one in running.status().values()):
            break
    for one in running.status().values():
        log(did="end", name=one.name, state=one.state, error=one.error)
    raise SystemExit("\n".join(one.error for one in running.status().values() if one.error) or "ended by itself")


def link(url, queue, to, folder):
    """A link that marks messages and moves them on, in small batches and slowly, until it is ended."""
    from spark_queue.graph.link_function import Forward
    from spark_queue.graph.model import ConsumerSettings, Graph, Link, Namespace, Place
    from spark_queue.runner import ExchangeGraph

    def mark(message):
        time.sleep(0.002)
        return Forward({"n": message.payload["n"], "seen": True}, headers={"by": "link"})

    spark = session("local[2]", folder)
    # Leases that last as long as a start, so that what dies is not waited for, and options that make batches overlap.
    options = {"reserveTimeout": "20s", "waitTimeout": "200ms"}
    made = Link(Place(queue), [Place(to)], process=mark, consumer=ConsumerSettings(parallel=2, wsize=200))
    ExchangeGraph(Graph({"here": Namespace(url, options)}, links={"mark": made}), folder).start(spark)
    threading.Event().wait()


def join(urls, inputs, to_url, to, folder):
    """Messages of two queues, side by side, into one of a third, in small batches."""
    from spark_queue.spark import supervise

    spark = session("local[2]", f"{folder}/checkpoint")

    def start():
        return (
            spark.readStream.format("queue")
            .options(urls=json.dumps(urls), inputs=json.dumps(inputs), delivery="exactly-once", waitTimeout="200ms")
            .options(maxRecordsPerTrigger="150", numPartitions="2")
            .load()
            .selectExpr("to_json(struct(a.payload AS a, b.payload AS b, delivery_hash AS hash)) AS payload")
            .writeStream.format("queue")
            .options(url=to_url, queue=to)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )

    supervise(start, to_url, initial_backoff=0.1, max_backoff=0.5)


def session(master, checkpoint):
    """A session that can die often: it starts fast, and needs little."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{checkpoint}.warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def place(checkpoint, to_url):
    """How far the logs of Spark and the ledger of the sink have come."""
    found = {name: last_in(checkpoint, name) for name in ("offsets", "commits")}
    metadata = Path(checkpoint, "metadata")
    if metadata.exists():
        with open_store(to_url, retry_timeout=AWAY * 1000) as store:
            ledger = ledger_of(store, json.loads(metadata.read_text())["id"])
        found["ledger"] = -1 if ledger is None else ledger.batch
    return found


def last_in(checkpoint, log):
    """The number of the last batch in a log of the checkpoint, -1 if there is none."""
    with suppress(FileNotFoundError), os.scandir(Path(checkpoint, log)) as files:
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)
    return -1


def consume_for_good(url, queue, log, consumer, lease, seed, client=None):
    """Reserve and commit, and keep what is committed in the history, which is the truth about it.

    `client`: that of the parent of this forked process.
    """
    rng, log = random.Random(seed), logger(log, sync=True)
    options = {"consumer": consumer, "lease": lease, "history": HISTORY}
    with client or Queue(open_store(url, retry_timeout=AWAY * 1000), queue, **options) as client:
        while True:
            begun = time.monotonic()
            batch = client.reserve(rng.randint(1, 300), timeout=0.5)
            if batch:
                _note(log, "reserve", batch, begun)
                if rng.random() < 0.1:  # overtaken by others, in part
                    time.sleep(lease * rng.uniform(0.5, 1.5))
                _commit(client, log, batch)


def compete(url, queue, log, consumer, lease, seed):
    """Reserve, and give back, give up, or be late."""
    rng, log = random.Random(seed), logger(log, sync=True)
    options = {"consumer": consumer, "lease": lease, "history": HISTORY, "max_tries": 4}
    with Queue(open_store(url, retry_timeout=AWAY * 1000), queue, **options) as client:
        while True:
            begun = time.monotonic()
            batch = client.reserve(rng.randint(1, 50), timeout=0.5)
            if not batch:
                continue
            _note(log, "reserve", batch, begun)
            fate = rng.random()
            if fate < 0.5:
                time.sleep(rng.uniform(0, lease / 4))
                client.rollback(*batch, delay=rng.choice([0, 0.2]))
            elif fate < 0.6:
                client.dead_letter(batch[0], reason="hopeless")
                client.rollback(*batch[1:])
            else:
                time.sleep(lease * rng.uniform(1.0, 1.5))
                _commit(client, log, batch)


def _commit(client, log, batch):
    """Commit some messages one by one, the others together."""
    for part in [batch[:1], batch[1:2], batch[2:]]:
        begun = time.monotonic()
        if part and client.commit(*part) == len(part):  # else the history has them
            _note(log, "commit", part, begun)


def _note(log, did, batch, begun):
    log(did=did, ids=[message.id for message in batch], begun=begun, ended=time.monotonic())


def end_with(parent):
    """End with the process that runs the tests: this is a session of its own, which no terminal ends."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    from tests.chaos import forking, iterating

    own = globals() | vars(forking) | vars(iterating)
    program = own[sys.argv[1]]
    program(**json.loads(sys.argv[2]))
