"""The jobs with Spark: in the session of the other tests, and as a user runs them where it comes to signals."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from spark_queue import Queue, UsageError, open_store
from spark_queue.stores.conformance.waiting import wait_until

JOBS = Path(__file__).parents[2] / "jobs"
sys.path.insert(0, str(JOBS))
job, push, drain, exchange = (importlib.import_module(name) for name in ("_job", "push", "drain", "exchange"))


@pytest.fixture
def jobs(spark, sqlite_url, name, tmp_path):
    return Jobs(spark, sqlite_url, name, tmp_path)


class Jobs:
    """The jobs on one queue, in the session of the tests or in processes of their own."""

    def __init__(self, spark, url, name, folder):
        self.spark, self.url, self.name, self.folder = spark, url, name, folder
        self.queue = ["--url", url, "--queue", name]

    def push(self, *args):
        return self._work(push, *args)

    def drain(self, *args):
        return self._work(drain, *args)

    def _work(self, module, *args):
        plan = module.prepare(module.parser().parse([str(arg) for arg in (*self.queue, *args)]))
        with plan.gauge:
            return module.work(self.spark, plan, job.Watch("test")).facts

    def start(self, *command):
        return self._started(*command, *self.queue)

    def start_alone(self, *command):
        return self._started(sys.executable, *command)

    def _started(self, *command):
        environ = os.environ | {"PYTHONPATH": str(JOBS.parent)}
        return subprocess.Popen(
            command,
            env=environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sizes(self, name=None):
        with Queue(self.url, name or self.name) as queue:
            return queue.sizes()

    def staged(self):
        with open_store(self.url) as store:
            return sum(one.rows for one in store.staged() if one.queue == self.name)

    def messages(self, name=None):
        """All messages, by id."""
        reader = self.spark.read.format("queue").option("url", self.url).option("queue", name or self.name)
        return {row["id"]: (row["payload"], row["headers"]) for row in reader.load().collect()}

    def file(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name


def stop(process, number, when):
    """Send the signal once `when` is true; the exit code and what was said."""
    wait_until(lambda: process.poll() is not None or when(), 240)
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    said, reported = process.communicate(timeout=300)
    assert str(JOBS) not in reported  # no traceback of the job; Spark 4.1 shows one of its own reader process
    return process.returncode, said, reported


# --- push -----------------------------------------------------------------------------------------------------------


def test_rows_of_csv_and_parquet_become_json_objects_with_id_and_headers(jobs):
    flights = jobs.file("flights.csv", 'id,carrier,delay,note\n1,UA,5,"say ""hi"""\n2,,-3,\n')
    (jobs.folder / "more").mkdir()
    table = pa.table({"id": [3], "carrier": ["é"], "delay": pa.array([None], pa.int32()), "at": [{"x": [1, 2]}]})
    pq.write_table(table, jobs.folder / "more" / "part-0.parquet")
    facts = jobs.push(flights, jobs.folder / "more", "--id", "id", "--headers", "carrier,delay")
    assert facts["rows"] == 3 and facts["holds"] == {"ready": 3, "scheduled": 0, "reserved": 0}
    found = {id: (json.loads(payload), headers) for id, (payload, headers) in jobs.messages().items()}
    assert found == {
        "1": ({"id": 1, "carrier": "UA", "delay": 5, "note": 'say "hi"'}, {"carrier": "UA", "delay": "5"}),
        "2": ({"id": 2, "delay": -3}, {"delay": "-3"}),
        "3": ({"id": 3, "carrier": "é", "at": {"x": [1, 2]}}, {"carrier": "é"}),
    }


def test_lines_of_json_and_text_are_payloads_as_they_are(jobs):
    lines = ['{"id": "a", "n": 1.0, "big": 12345678901234567890, "none": null}', '{"id": "b", "n": [1, 2]}', '"word"']
    jobs.push(jobs.file("some.jsonl", "\n".join([*lines, ""])), jobs.file("some.txt", "one\n\ntwo {\n"))
    found = sorted(payload for payload, _ in jobs.messages().values())
    assert sorted(map(json.loads, found), key=str) == sorted([*map(json.loads, lines), "one", "", "two {"], key=str)


def test_payload_id_delay_and_limit_of_a_push(jobs):
    rows = jobs.file(
        "rows.json", "".join(json.dumps({"key": n, "body": {"n": n}, "text": f"{n} {{"}) + "\n" for n in range(9))
    )
    jobs.push(rows, "--payload", "body", "--id", "key", "--limit", "4", "--delay", "1h")
    assert jobs.sizes().scheduled == 4
    assert {id: payload for id, (payload, _) in jobs.messages().items()} == {str(n): f'{{"n":{n}}}' for n in range(4)}
    jobs.push(rows, "--payload", "text", "--option", "payloadFormat=text")
    assert jobs.sizes().ready == 9
    assert jobs.push(rows, "--payload", "text", "--option", "onBadRow=deadLetter")["dead"] == 9


def test_a_push_of_columns_that_are_missing_pushes_nothing(jobs):
    good, other = jobs.file("a.csv", "id,x\n1,2\n"), jobs.file("b.json", '{"idd": 1}\n')
    with pytest.raises(UsageError, match="--id: no column 'id'; did you mean 'idd'"):
        jobs.push(good, other, "--id", "id")
    assert jobs.sizes().total == 0
    with pytest.raises(Exception, match="nothing of this batch was pushed") as failed:
        jobs.push(jobs.file("bad.json", '{"a": 1}\n{"a"\n'))
    reported, code = job.diagnosis(failed.value)
    assert code == 1 and re.fullmatch(rf"queue '{jobs.name}', row with id .* is not JSON .*", reported)
    assert jobs.sizes().total == 0


# --- drain ----------------------------------------------------------------------------------------------------------


def test_a_queue_goes_into_every_target_and_its_history_too(jobs, capsys):
    rows = [{"id": f"m{n:02}", "carrier": "UA", "delay": n} for n in range(20)]
    file = jobs.file("rows.json", "".join(json.dumps(row) + "\n" for row in rows))
    jobs.push(file, "--id", "id", "--headers", "carrier")
    sent = jobs.messages()
    facts = jobs.drain(
        "--to",
        "parquet",
        "--path",
        jobs.folder / "p",
        "--available-now",
        "--max-records",
        8,
        "--option",
        "history=1h",
    )
    assert (
        facts["messages"] == 20
        and facts["batches"] >= 3
        and facts["holds"]["ready"] == facts["holds"]["reserved"] == 0
    )

    def table(form):
        read = jobs.spark.read.options(header=True, escape='"').format(form).load(str(jobs.folder / form[0]))
        return {row["id"]: (row["payload"], row["headers"]) for row in read.collect()}

    assert table("parquet") == sent
    for form in ("json", "csv"):
        assert jobs.drain("--to", form, "--path", jobs.folder / form[0], "--history")["messages"] == 20
    assert {id: payload for id, (payload, _) in table("json").items()} == {
        id: payload for id, (payload, _) in sent.items()
    }
    assert table("csv") == {id: (payload, '{"carrier":"UA"}') for id, (payload, _) in sent.items()}
    jobs.drain("--to", "queue", "--to-queue", f"{jobs.name}.again", "--history")
    assert jobs.messages(f"{jobs.name}.again") == sent

    back = ["--to", "queue", "--to-queue", jobs.name, "--checkpoint", jobs.folder / "back", "--available-now"]
    again = Jobs(jobs.spark, jobs.url, f"{jobs.name}.again", jobs.folder)
    assert again.drain(*back)["messages"] == 20 and again.sizes().total == 0
    assert jobs.messages() == sent
    assert again.drain("--to", "noop", "--available-now")["messages"] == 0
    assert f"queue '{again.name}' holds no messages; did you mean '{jobs.name}'?" in capsys.readouterr().err


def test_a_schema_makes_columns_of_the_payload(jobs):
    jobs.push(jobs.file("a.json", '{"id": "x", "delay": 5, "at": {"h": 1}}\n{"delay": "late"}\n'))
    with pytest.raises(UsageError, match=r"--schema 'delay INTT': .*INTT"):
        jobs.drain("--to", "noop", "--available-now", "--schema", "delay INTT")
    schema = ["--schema", "id STRING, delay INT, at STRUCT<h: INT>"]
    jobs.drain("--to", "parquet", "--path", jobs.folder / "p", "--available-now", *schema)
    rows = jobs.spark.read.parquet(str(jobs.folder / "p")).orderBy("delay", ascending=False).collect()
    assert [(row["payload_id"], row["delay"], row["at"], row["_corrupt_payload"]) for row in rows] == [
        ("x", 5, (1,), None),
        (None, None, None, '{"delay": "late"}'),
    ]


def test_a_payload_that_no_variant_holds_keeps_its_text(jobs):
    text = "x" * (16 << 20)
    with Queue(jobs.url, jobs.name) as queue:
        queue.push_many([{"a": 1}, text])
    form = ["--option", "payloadFormat=variant"]
    jobs.drain("--to", "json", "--path", jobs.folder / "j", "--available-now", *form)
    rows = jobs.spark.read.json(str(jobs.folder / "j"))
    found = {(row["payload"]["a"] if row["payload"] else None, row["_corrupt_payload"]) for row in rows.collect()}
    assert found == {(1, None), (None, f'"{text}"')}


# --- as a user runs them --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_drain_that_is_stopped_goes_on_where_it_was(jobs):
    jobs.push(jobs.file("n.txt", "".join(f"{n}\n" for n in range(20_000))))
    target = ["--to", "parquet", "--path", str(jobs.folder / "out"), "--max-records", "500"]
    running = jobs.start(sys.executable, str(JOBS / "drain.py"), *target, "--json")
    code, said, reported = stop(running, signal.SIGINT, lambda: jobs.sizes().total < 18_000)
    first = json.loads(said)
    assert code == 0 and first["stopped"] == "SIGINT" and 0 < first["messages"] < 20_000, reported
    assert f"stopped: {first['messages']:,} messages of {jobs.name}" in reported
    assert jobs.sizes().total == 20_000 - first["messages"]
    second = jobs.drain(*target[:-1], 20_000, "--available-now")
    assert jobs.sizes().total == 0 and second["messages"] + first["messages"] == 20_000
    out = jobs.spark.read.parquet(str(jobs.folder / "out"))
    assert out.count() == out.select("payload").distinct().count() == 20_000


@pytest.mark.full
def test_a_drain_without_checkpoint_gives_back_what_it_held(jobs):
    jobs.push(jobs.file("n.txt", "".join(f"{n}\n" for n in range(20_000))))
    running = jobs.start(
        sys.executable, str(JOBS / "drain.py"), "--to", "noop", "--max-records", "500", "--available-now", "--json"
    )
    code, said, _ = stop(running, signal.SIGTERM, lambda: jobs.sizes().total < 18_000)
    done = json.loads(said)["messages"]
    assert code == 143 and (jobs.sizes().ready, jobs.sizes().reserved) == (20_000 - done, 0)


def test_a_push_that_is_stopped_leaves_nothing(jobs):
    rows = jobs.file("n.csv", "id,text\n" + "".join(f"{n},x\n" for n in range(400_000)))
    running = jobs.start(sys.executable, str(JOBS / "push.py"), str(rows), "--json")
    code, said, reported = stop(running, signal.SIGINT, lambda: jobs.staged() > 0)
    assert (code, json.loads(said)["rows"], jobs.sizes().total, jobs.staged()) == (130, 0, 0, 0)
    assert "stopped: nothing pushed" in reported


@pytest.mark.full
def test_a_push_at_least_once_that_is_stopped_can_be_repeated(jobs):
    rows = jobs.file("n.csv", "id,text\n" + "".join(f"{n},x\n" for n in range(400_000)))
    often = ("--option", "delivery=at-least-once")
    running = jobs.start(sys.executable, str(JOBS / "push.py"), str(rows), "--id", "id", "--json", *often)
    code, said, reported = stop(running, signal.SIGINT, lambda: jobs.sizes().total > 0)
    there = jobs.sizes().total
    assert code == 130 and json.loads(said)["rows"] == there < 400_000
    assert f"stopped: about {there:,} rows pushed to {jobs.name}" in reported
    assert jobs.push(rows, "--id", "id")["holds"]["ready"] == 400_000


@pytest.mark.full
def test_a_drain_under_spark_submit(jobs):
    jobs.push(jobs.file("n.json", '{"carrier": "UA"}\n{"carrier": "WN"}\n'))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    args = ["--to", "console", "--available-now", "--schema", "carrier STRING", "--json"]
    running = jobs.start(
        str(submit), "--master", "local[2]", "--conf", "spark.ui.enabled=false", str(JOBS / "drain.py"), *args
    )
    said, reported = running.communicate(timeout=300)
    assert running.returncode == 0, reported
    assert "|WN|" in said.replace(" ", "")
    assert json.loads(said.splitlines()[-1])["messages"] == 2  # spark-submit sends all that a job says to stdout
    assert jobs.sizes().total == 0


# --- exchange -------------------------------------------------------------------------------------------------------

GRAPH = """\
namespaces: {here: "URL", there: {url: "${THERE}"}}
exchanges:
  split:
    src: here/QUEUE
    dst:
      - {queue: QUEUE.odd, selector: "payload:n::int % 2 = 1", set: {headers: {odd: "'yes'"}}}
      - {ns: there, queue: QUEUE.big, selector: "payload:n::int > 7"}
  back: {src: here/QUEUE.odd, dst: [QUEUE]}
max_hops: 3
"""


@pytest.fixture
def graph(jobs, monkeypatch):
    monkeypatch.setenv("THERE", f"sqlite:///{jobs.folder}/there.db")
    text = GRAPH.replace("URL", jobs.url).replace("QUEUE", jobs.name)
    return jobs.file("graph.yaml", text)


def call_exchange(jobs, *args, watch=None):
    plan = exchange.prepare(exchange.parser().parse([str(one) for one in args]))
    return exchange.work(jobs.spark, plan, watch or job.Watch("test"))


def test_a_graph_is_run_until_all_is_routed(jobs, graph):
    jobs.push(jobs.file("n.json", "".join(f'{{"n": {n}}}\n' for n in range(10))))
    root = jobs.folder / "checkpoints"
    done = call_exchange(jobs, graph, "--available-now", "--checkpoint-root", root)
    split, back = done.facts["exchanges"].values()
    odd, big = (f"{ns}/{jobs.name}.{name}" for ns, name in (("here", "odd"), ("there", "big")))
    # The odd ones go round once; when they come to `back` again they have gone through three exchanges.
    assert (split["received"], split["pushed"]) == (15, {odd: 10, big: 3})
    assert (split["no_route"], split["too_many_hops"]) == (4, 0)
    assert (back["received"], back["pushed"], back["too_many_hops"]) == (10, {f"here/{jobs.name}": 5}, 5)
    assert (done.code, done.facts["stopped"]) == (0, None)
    assert done.text.startswith("25 messages routed by 2 steps in ")
    assert [line.split() for line in done.text.splitlines()[-3:]] == [
        ["back", "from", odd, "10"],
        ["to", f"here/{jobs.name}", "5"],
        ["too", "many", "hops", "5"],
    ]
    assert jobs.sizes().total == 0
    assert sorted(one.name for one in root.iterdir()) == ["back", "split"]


def test_mistakes_of_a_graph_are_reported_before_spark_starts(jobs, graph):
    for args, expected in (
        (["nope.yaml"], "nope.yaml: no such file"),
        ([graph, "--only", "splitt"], "has no step 'splitt'; did you mean 'split'?"),
    ):
        with pytest.raises(UsageError, match=re.escape(expected)):
            exchange.prepare(exchange.parser().parse([str(one) for one in args]))
    graph.write_text(graph.read_text().replace("max_hops: 3", "max_hop: 3"))
    with pytest.raises(UsageError, match=r"line 9, max_hop: unknown key; did you mean 'max_hops'\?"):
        exchange.prepare(exchange.parser().parse([str(graph)]))


@pytest.mark.full
def test_a_graph_that_is_stopped_ends_well(jobs, graph):
    root = str(jobs.folder / "checkpoints")
    running = jobs.start_alone(str(JOBS / "exchange.py"), str(graph), "--checkpoint-root", root, "--json")
    jobs.push(jobs.file("n.json", '{"n": 8}\n'))
    code, said, reported = stop(running, signal.SIGTERM, lambda: jobs.sizes().total == 0)
    assert code == 0, reported
    facts = json.loads(said)
    assert facts["stopped"] == "SIGTERM"
    assert facts["exchanges"]["split"]["state"] == "stopped"
    assert "a message leaves it after 3 hops" in reported
