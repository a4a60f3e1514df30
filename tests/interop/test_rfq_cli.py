"""`spark-queue --layout rfq` beside the real `rfq`: the same calls, the same output, on one topic."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import uuid
from urllib.parse import urlsplit

import pytest

from spark_queue import open_store
from spark_queue.cli import params
from tests.command_line import Run, announcing
from tests.interop.driver import required
from tests.interop.rfq import PYTHON, unavailable

RFQ = PYTHON.with_name("rfq")

pytestmark = [pytest.mark.interop, pytest.mark.full]


@pytest.fixture
def topic(redis_url, monkeypatch):
    """A topic of the test's own, in the database that rfq uses."""
    required(unavailable("python"))
    parts = urlsplit(redis_url)
    monkeypatch.setenv("RFQ_REDIS_HOST", parts.hostname or "localhost")
    monkeypatch.setenv("RFQ_REDIS_PORT", str(parts.port or 6379))
    monkeypatch.setenv(params.URL_VARIABLE, "mongodb://nowhere/of-no-matter")
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    with open_store(f"redis://{parts.hostname}:{parts.port or 6379}/0?layout=rfq") as store:
        store.drop(name)


def ours(*args: str) -> tuple[int, str]:
    done = Run("--layout", "rfq", *args)
    assert done.err == ""
    return done.code, done.out


def theirs(*args: str) -> tuple[int, str]:
    done = subprocess.run([RFQ, *args], capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


BOTH = pytest.mark.parametrize(("one", "other"), [(ours, theirs), (theirs, ours)], ids=["ours first", "theirs first"])


@BOTH
def test_both_print_the_same(topic, one, other):
    message = {"tile": "T32UNE", "name": "é 'x' \"y\""}
    ids = []
    for program, front in ((one, []), (other, []), (one, ["-f"]), (other, ["--front"])):
        code, out = program("publish", "-t", topic, "--message", json.dumps(message), *front)
        assert code == 0 and len(out.strip()) == 32
        ids.append(out.strip())
    order = [ids[3], ids[2], ids[0], ids[1]]  # the next one first
    for args in (["-t", topic], ["--topic", topic, "--queue", "backlog"], ["-t", topic, "-q", "nextlog"]):
        assert one("list-queue", *args) == other("list-queue", *args)
    assert one("list-queue", "-t", topic) == (0, "".join(f"{id}\n" for id in reversed(order)))
    assert (
        block(one("info"), topic) == block(other("info"), topic) == f"backlog\t\t4\t\t{16 * '#'}\nnextlog\t\t0\t\t\n"
    )
    for program in (one, other):
        code, out = program("list-topics")
        assert code == 0 and topic in out.splitlines()
    for id in (ids[0], ids[1]):
        ours_, theirs_ = ours("peek", "-t", topic, "-m", id), theirs("peek", "-t", topic, "--msgid", id)
        assert ours_[0] == theirs_[0] == 0 and json.loads(ours_[1]) == json.loads(theirs_[1]) == message
    assert one("peek", "-t", topic, "-m", "0" * 32) == other("peek", "-t", topic, "-m", "0" * 32) == (1, "")
    for program in (one, other):
        code, out = program("consume", "-t", topic)
        assert code == 0 and ast.literal_eval(out) == message and out == f"{message!r}\n"
    assert one("list-queue", "-t", topic)[1].split() == [order[3], order[2]]
    assert other("purge-queue", "-t", topic) == (0, f"{order[2]}\n{order[3]}\n")
    assert one("purge-queue", "-t", topic) == other("purge-queue", "-t", topic) == (0, "")
    assert topic not in one("list-topics")[1].split()


def block(answer: tuple[int, str], topic: str) -> str:
    code, out = answer
    assert code == 0
    return out.partition(f"topic\t\t{topic}\n")[2].partition("\n\n")[0] + "\n"


@BOTH
def test_what_one_has_taken_the_other_harvests(topic, one, other):
    for n in "123":
        one("publish", "-t", topic, "-m", json.dumps({"n": n}))
    dies = f"import os\nfrom rfq.rfq import Queue\nQueue().consume({topic!r})\nos._exit(1)"
    taken = subprocess.run([RFQ.parent / "python", "-c", dies], timeout=300, check=False)
    assert taken.returncode == 1
    (held,) = one("list-queue", "-t", topic, "-q", "nextlog")[1].split()
    assert other("list-queue", "-t", topic, "-q", "nextlog")[1].split() == [held]
    assert block(one("info"), topic) == block(other("info"), topic)
    assert one("harvest", "-t", topic) == (0, f"{held}\n")
    assert one("harvest", "-t", topic) == other("harvest", "-t", topic) == (0, "")
    assert other("list-queue", "-t", topic)[1].split()[0] == held  # behind the others
    theirs_held = Run("--layout", "rfq", "reserve", topic, "--json").json["messages"][0]["id"]
    assert other("list-queue", "-t", topic, "-q", "nextlog") == (0, f"{theirs_held}\n")
    assert one("purge-queue", "-t", topic, "-q", "nextlog") == (0, f"{theirs_held}\n")
    assert (
        one("list-queue", "-t", topic, "-q", "nextlog")
        == other("list-queue", "-t", topic, "-q", "nextlog")
        == (0, "")
    )


@pytest.mark.parametrize("message", ["[1]", "{}", '{"a": true}', '{"a": null}', '{"a": [1]}', "oops", " "])
def test_what_rfq_refuses_is_refused(topic, message):
    refused = Run("--layout", "rfq", "publish", "-t", topic, "-m", message)
    assert refused.code == 1 and refused.out == "" and "Traceback" not in refused.err
    theirs_ = subprocess.run(
        [RFQ, "publish", "-t", topic, "-m", message], capture_output=True, timeout=300, check=False
    )
    assert theirs_.returncode == 1
    assert ours("list-queue", "-t", topic) == (0, "")


@pytest.mark.parametrize("args", [[], ["-q", "log", "-t", "x"], ["-x"]])
def test_mistakes_end_with_the_same_code(topic, args):
    theirs_ = subprocess.run([RFQ, "list-queue", *args], capture_output=True, timeout=300, check=False)
    assert Run("--layout", "rfq", "list-queue", *args).code == theirs_.returncode == 2


def test_a_consume_waits_and_ends_by_ctrl_c_with_code_0(topic):
    call = [*announcing(), "--layout", "rfq", "consume", "-t", topic]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "waiting\n"
        theirs("publish", "-t", topic, "-m", '{"n": "1"}')
        assert waiting.communicate(timeout=300)[0] == "{'n': '1'}\n" and waiting.returncode == 0
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=300)[0] == "" and waiting.returncode == 0
    assert ours("list-queue", "-t", topic, "-q", "nextlog") == (0, "")


def test_its_address_may_be_given_in_other_ways(topic, redis_url, monkeypatch):
    url = redis_url.partition("?")[0]
    assert Run("--layout", "rfq", "publish", url, "-t", topic, "-m", '{"n": 1}').code == 0
    assert topic in Run("list-topics", f"{url}?layout=rfq").out.split()
    assert Run("size", url, topic, "--json").json[0]["ready"] == 0, "in another layout the queue has other messages"
    monkeypatch.setenv("RFQ_REDIS_PORT", "1")
    away = Run("--layout", "rfq", "list-topics")
    assert away.code == 1 and "127.0.0.1:1" in away.err
    wrong = Run("--layout", "rfk", "list-topics", url)
    assert wrong.code == 2 and "did you mean 'rfq'" in wrong.err
    assert Run("--layout", "redis-list", "list-topics", f"{url}?layout=rfq").code == 2
