"""`spark-queue event`: made, taken, executed and looked after from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from tests.command_line import Run

CONF = Path(__file__).parents[2] / "conf"
S = "http://example.org/flights"


@pytest.fixture
def event(sqlite_url):
    def run(command, *args, **how):
        return Run("event", command, sqlite_url, "hub", *args, **how)

    return run


def test_from_created_to_cleared(event):
    conf = ["--conf", CONF / "executors.yaml"]
    first = event("create", S, "landed", "--payload", '{"flight": 1545}', "--uri", "/a", "--json").json
    more = event("create", S, "departed", "--uris", "-", "--max-uris", "2", "--text", "<x/>", input="/a\n\n/b\n/c\n")
    urgent = event("create", S, "other", "--priority").out.split()
    ids = [*urgent, *first, *more.out.split()]
    assert (
        len(ids) == 4
        and event("create", S, "landed", "--uris", "-", input="").err == "no URIs: no event was created\n"
    )
    taken = event("take", "--count", "3", "--json").json
    assert [one["id"] for one in taken] == ids[:3]
    assert taken[1] | {"created": "", "host": "", "user": "", "transaction": ""} == {
        "id": ids[1], "source": S, "type": "landed", "payload": {"flight": 1545}, "kind": "map", "uris": ["/a"],
        "priority": False, "user": "", "host": "", "transaction": "", "created": "",
    }  # fmt: skip
    assert event("status", *ids, "--json").json == dict(zip(ids, ["pending"] * 3 + ["new"], strict=True))
    assert event("execute", *ids[:3], *conf).out.split() == [
        ids[0], "failed", ids[1], "counted", ids[2], "counted",
    ]  # fmt: skip
    assert [row[:2] for row in event("list").rows] == [
        [ids[1], "counted"], [ids[2], "counted"], [ids[3], "new"], [ids[0], "failed"],
    ]  # fmt: skip
    assert event("list", "--status", "new", "--json").json[0]["uris"] == ["/c"]
    assert event("list", "--status", "new", "--older-than", "PT1H").err == "hub has no events of this kind\n"
    assert event("summary", "--json").json["counted"] == 2
    assert event("reset", ids[0]).out == "1 event reset\n"
    assert event("fail", ids[3], "--reason", "no time").out == "1 event failed\n"
    assert event("clear", *ids[1:3], "--yes", "--json").json == {"deleted": 2}
    gone = event("status", *ids)
    assert gone.code == 1
    assert gone.out.split() == [ids[0], "new", ids[1], "unknown", ids[2], "unknown", ids[3], "failed"]
    log = event("log", "--json").json
    assert [one["message"] for one in log][-3:] == ["Events reset", "Events failed", "Events deleted"]
    assert "Events deleted" in event("log").out


def test_a_heartbeat(event):
    conf = ["--conf", CONF / "heartbeats.yaml"]
    assert len(event("heartbeat", "FifteenMinute", *conf, "--json").json) == 3
    assert len(event("take", "--json").json) == 3
    assert event("take").code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["create", "a b", "t"], "source 'a b' must be text without spaces"),
        (["create", S, "t", "--payload", "{"], "--payload is not JSON"),
        (["create", S, "t", "--payload", "1", "--text", "x"], "give either --payload or --text"),
        (["create", S, "t", "--conf", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["list", "--older-than", "1h"], "--older-than needs --status"),
        (["list", "--status", "new", "--older-than", "soon"], "is not a duration such as"),
        (["heartbeat", "OneMinute"], "--conf is missing: name the file"),
        (["heartbeat", "TenMinute", "--conf", CONF / "heartbeats.yaml"], "no heartbeat 'TenMinute'; did you mean"),
    ],
)
def test_mistakes(event, args, message):
    done = event(*args)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert json.loads(event("summary", "--json").out)["new"] == 0
