"""The command line, on every store: messages by hand, sizes, and what rfq calls by other names."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from spark_queue import Queue, cli
from spark_queue.admin import queues as admin_queues
from spark_queue.admin import sizes as admin_sizes
from spark_queue.admin.common import STEP
from spark_queue.cli import params as parse
from spark_queue.messages.message import pushes
from spark_queue.stores.conformance.waiting import wait_until
from spark_queue.stores.services import owner
from spark_queue.stores.services.ownership import Ownership
from tests.command_line import Run, arguments, telling


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.delenv(parse.URL_VARIABLE, raising=False)


def lines(text: str) -> list:
    return [json.loads(line) for line in text.splitlines()]


# --- push, pop ------------------------------------------------------------------------------------


def test_what_is_pushed_is_popped_as_it_was(url, name):
    values = [
        {"n": 1, "far": 2**60},
        [],
        "text",
        1.5,
        {"$binary": {"base64": "AP8=", "subType": "00"}},
        "é\u2028\x9b",
    ]
    given = "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in values) + "\n   \n"
    pushed = Run("push", url, name, input=given)
    assert (pushed.code, pushed.out, pushed.err) == (0, f"6 messages pushed to {name}\n", "")
    with Queue(url, name) as queue:
        assert [one.payload for one in queue.peek()] == [*values[:4], b"\x00\xff", values[5]]
    popped = Run("pop", url, name, "--limit", 4)
    assert popped.code == 0 and lines(popped.out) == values[:4]
    whole = lines(Run("pop", url, name, "--all", "--json").out)
    assert [one["payload"] for one in whole] == values[4:]
    assert whole[0].keys() == {"id", "queue", "payload", "headers", "mature", "tries", "pushed"}
    none = Run("pop", url, name)
    assert (none.code, none.out, none.err) == (1, "", f"no message of {name} is ready (it is empty)\n")


def test_more_than_a_step_goes_through(url, store, name):
    most = STEP + 200
    given = "".join(f"{n}\n" for n in range(most))
    assert Run("push", url, name, "--json", input=given).json == {"queue": name, "pushed": most}
    assert store.sizes(name).ready == most
    assert sorted(lines(Run("pop", url, name, "--limit", most - 100).out)) == list(range(most - 100))
    assert Run("size", url, name, "--json").json[0]["ready"] == 100
    assert len(lines(Run("pop", url, name, "--all").out)) == 100


def test_whole_messages_go_from_queue_to_queue(url, name, tmp_path):
    Run("push", url, name, "--header", "a=1=2", "--header", "b=é", input='{"n": 1}\n"x"\n')
    file = tmp_path / "taken.jsonl"
    file.write_text(Run("pop", url, name, "--all", "--json").out)
    taken = lines(file.read_text())
    assert taken[0]["headers"] == {"a": "1=2", "b": "é"}
    assert Run("push", url, f"{name}.other", file, "--as", "message").code == 0
    again = lines(Run("peek", url, f"{name}.other", "--json").out)
    assert all(one["pushed"] >= old["pushed"] for one, old in zip(again, taken, strict=True)), "they are pushed anew"
    pushed = [one["pushed"] for one in taken]
    assert [{**one, "queue": name, "pushed": old} for one, old in zip(again, pushed, strict=True)] == taken
    more = '{"payload": 1, "id": "6b01b3b5957fe46c72000000", "tries": 2, "delay": 600, "headers": {"a": "0"}}'
    assert Run("push", url, name, "--as", "message", "--header", "a=1", "--header", "c=2", input=more).code == 0
    (one,) = lines(Run("peek", url, name, "--json").out)
    assert (one["id"], one["tries"], one["headers"]) == ("6b01b3b5957fe46c72000000", 2, {"a": "0", "c": "2"})
    assert Run("size", url, name, "--json").json[0]["scheduled"] == 1


def test_messages_of_a_history_are_pushed_again(url, name):
    Run("push", url, name, "--header", "a=1", input='{"n": 1}\n"x"\n')
    tag = Run("reserve", url, name, "--limit", 2, "--json").json["tag"]
    assert Run("commit", url, name, tag, "--history", "1m").code == 0
    past = Run("history", url, name, "--json").json
    assert {"processed", "consumer", "outcome", "error"} < past[0].keys()
    given = "".join(f"{json.dumps(one)}\n" for one in past)
    pushed = Run("push", url, f"{name}.other", "--as", "message", input=given)
    assert (pushed.code, pushed.out) == (0, f"2 messages pushed to {name}.other\n")
    again = lines(Run("peek", url, f"{name}.other", "--json").out)
    assert [(one["id"], one["payload"]) for one in again] == [(one["id"], one["payload"]) for one in past]


def test_lines_of_text_and_delays(url, name):
    assert Run("push", url, name, "--as", "text", "--delay", "10m", input=" a b \r\n[\n").code == 0
    assert [one["payload"] for one in lines(Run("peek", url, name, "--json").out)] == [" a b ", "["]
    assert Run("push", url, name, "--mature", "2001-01-01", input="1").code == 0
    sizes = Run("size", url, name, "--json").json[0]
    assert (sizes["ready"], sizes["scheduled"]) == (1, 2) and sizes["oldest"] > 1e8


WRONG = {
    "no json": ("json", "{n: 1}", "line 2: its payload is not JSON"),
    "no message": ("message", '{"n": 1}', "line 2: it is not a message"),
    "an unknown field": ("message", '{"payload": 1, "heders": {}}', "no field 'heders'; did you mean 'headers'"),
    "a header that is no text": ("message", '{"payload": 1, "headers": {"a": 1}}', "an object of text"),
    "a wrong moment": ("message", '{"payload": 1, "mature": "soon"}', "line 2: Invalid isoformat string: 'soon'"),
    "no time zone": ("message", '{"payload": 1, "mature": "2026-01-01"}', "no time zone"),
    "a wrong delay": ("message", '{"payload": 1, "delay": "1s"}', "its delay must be a number"),
    "a negative delay": ("message", '{"payload": 1, "delay": -1}', "line 2: its delay is negative"),
    "a wrong id": ("message", '{"payload": 1, "id": ""}', "line 2: its id"),
    "an id that is a number": ("message", '{"payload": 1, "id": 1}', "its id must be text"),
    "half a surrogate pair": ("message", r'{"payload": "\ud800"}', "line 2: it is not JSON"),
    "an integer and half a pair": ("json", r'[12345678901234567890123, "\ud800"]', "line 2: its payload is not JSON"),
    "wrong tries": ("message", '{"payload": 1, "tries": -1}', "its tries"),
}


@pytest.mark.parametrize(("form", "line", "told"), WRONG.values(), ids=WRONG)
def test_a_line_that_is_wrong_is_told_and_nothing_pushed(sqlite_url, form, line, told):
    good = "1" if form == "json" else '{"payload": 1}'
    refused = Run("push", sqlite_url, "q", "--as", form, input=f"{good}\n{line}\n{good}\n")
    assert refused.code == 1 and refused.out == ""
    assert told in refused.err and "nothing was pushed" in refused.err
    assert Run("peek", sqlite_url, "q").out == ""


def test_arguments_that_are_not_utf8_are_refused(sqlite_url):
    """A shell passes any bytes; Python makes half a surrogate pair of what is not UTF-8."""
    for call, told in (
        (["push", sqlite_url, "q", "--header", "gate=\udcff"], "headers.gate: text with half a surrogate pair"),
        (["push", sqlite_url, "q", "--header", "\udcff=B12"], "headers: the key '\\udcff': text with half"),
        (["publish", sqlite_url, "q", "-m", '"\udcff"'], "line 1: its payload is not UTF-8 text"),
        (["commit", sqlite_url, "q", "cli/1", "\udcff"], "id: text with half a surrogate pair"),
        (["history", sqlite_url, "q", "--id", "\udcff"], "id: text with half a surrogate pair"),
        (["event", "execute", sqlite_url, "q", "\udcff"], "id: text with half a surrogate pair"),
    ):
        refused = Run(*call, input="1\n")
        assert (refused.code, refused.out) == (1, "") and told in refused.err
    assert Run("peek", sqlite_url, "q").out == ""


def test_a_file_is_checked_before_and_a_pipe_as_it_comes(url, store, name, tmp_path):
    good = [f'{{"payload": {n}}}\n' for n in range(STEP + 10)]
    for bad, told in (("oops", "it is not JSON"), ('{"payload": 1, "delay": -1}', "its delay is negative")):
        (tmp_path / "x.jsonl").write_text("".join([*good, bad]))
        refused = Run("push", url, name, tmp_path / "x.jsonl", "--as", "message")
        assert refused.code == 1 and f"line {len(good) + 1}: {told}" in refused.err
        assert "nothing was pushed" in refused.err and store.sizes(name).total == 0
    call = [*arguments(), "push", url, name, "--as", "message"]
    text = (tmp_path / "x.jsonl").read_text()
    done = subprocess.run(call, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and f"line {len(good) + 1}: its delay is negative" in done.stderr
    pushed = int(done.stderr.partition("; ")[2].partition(" ")[0].replace(",", ""))
    assert store.sizes(name).total == pushed > 0


def test_a_pipe_that_flows_slowly_is_not_kept_waiting(url, store, name):
    with subprocess.Popen(
        [*arguments(), "push", url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write(b"1\n2\n3")
        pushing.stdin.flush()
        wait_until(lambda: store.sizes(name).total == 2)
        pushing.stdin.close()
        assert pushing.wait(120) == 0
    assert store.sizes(name).total == 3


def test_what_was_not_printed_is_not_removed(url, store, name, monkeypatch):
    store.push(name, pushes([1, 2, 3]))

    def full(value):
        raise OSError("no space left on device")

    monkeypatch.setattr(cli.messages, "print_json_line", full)
    with pytest.raises(OSError, match="no space"):
        Run("pop", url, name, "--all")
    sizes = store.sizes(name)
    assert (sizes.ready, sizes.reserved) == (3, 0)
    monkeypatch.undo()
    assert lines(Run("pop", url, name, "--all").out) == [1, 2, 3]


# --- reserve, commit, rollback --------------------------------------------------------------------


def test_a_tag_is_settled_by_other_calls(url, store, name):
    store.push(name, pushes([{"n": n} for n in range(6)]))
    shown = Run("reserve", url, name, "--limit", 2, "--consumer", "me")
    assert shown.code == 0 and shown.err == ""
    *_, last = shown.out.splitlines()
    tag = last.rpartition(" ")[2]
    assert last == f"2 messages of {name} reserved under tag {tag}" and tag.startswith("me/")
    assert [row[-1] for row in shown.rows[:2]] == ["0}", "1}"]
    told = Run("reserve", url, name, "--limit", 3, "--json", "--lease", "never").json
    assert [one["payload"] for one in told["messages"]] == [{"n": 2}, {"n": 3}, {"n": 4}]
    assert [one.until for one in store.reservations(name, told["tag"])] == [None]

    done = Run("commit", url, name, tag)
    assert (done.code, done.out) == (0, f"2 messages of {name} committed\n")
    late = Run("commit", url, name, tag)
    assert (late.code, late.out) == (1, f"0 messages of {name} committed\n")
    assert f"tag {tag} holds no messages of {name}" in late.err

    first, second, third = (one["id"] for one in told["messages"])
    one = Run("commit", url, name, told["tag"], first, "--json")
    assert one.json == {"queue": name, "tag": told["tag"], "committed": 1}
    partly = Run("rollback", url, name, told["tag"], second, first, "--delay", "10m")
    assert (partly.code, partly.out) == (1, f"1 message of {name} rolled back\n")
    assert "1 of 2 ids not held under tag" in partly.err
    assert store.sizes(name).scheduled == 1
    dead = Run("rollback", url, name, told["tag"], "--max-tries", 1, "--json")
    assert dead.json == {"queue": name, "tag": told["tag"], "rolled_back": 0, "dead": 1}
    assert [one.id for one in Queue(store, f"{name}.dead").peek()] == [third]
    (again,) = [one for one in Queue(store, name).peek() if one.id == second]
    assert again.tries == 1


def test_a_reserve_in_vain_ends_with_code_1(url, store, name):
    none = Run("reserve", url, name, "--json")
    assert none.code == 1 and none.json == {"queue": name, "tag": None, "messages": []}
    store.push(name, pushes([1], delay=300))
    assert Run("reserve", url, name, "--timeout", "10m").code == 0, "it comes long before"


def test_what_a_living_query_holds_is_left_to_it(url, store, name, monkeypatch):
    monkeypatch.setattr(owner, "OWNER_TIMEOUT_MS", 600_000)
    store.push(name, pushes([1, 2]))
    store.reserve(name, "etl/3fa9c1/1", 1, lease=None)
    Ownership(store, name, "etl/3fa9c1").take()
    for call in (["commit", url, name, "etl"], ["rollback", url, name, "etl/3fa9c1/1/0"], ["harvest", url, name],
                 ["purge-queue", url, name, "-q", "nextlog", "--yes"]):  # fmt: skip
        refused = Run(*call)
        assert refused.code == 2 and refused.out == "" and "is run by process" in refused.err
    sizes = store.sizes(name)
    assert (sizes.ready, sizes.reserved) == (1, 1)


def test_history_is_kept_where_it_is_asked_for(url, store, name):
    store.push(name, pushes([1, 2]))
    tag = Run("reserve", url, name, "--limit", 2, "--json").json["tag"]
    assert Run("commit", url, name, tag, "--history", "1h").code == 0
    assert sum(batch.num_rows for batch in store.peek(name, view="history")) == 2


# --- looking, moving ------------------------------------------------------------------------------


def test_sizes_of_many_messages_are_counted_up_to_a_limit(url, store, name, monkeypatch):
    monkeypatch.setattr(admin_sizes, "COUNT_LIMIT", 1_000)
    for _ in range(2):
        store.push(name, pushes(range(700)))
    store.push(f"{name}.dead", pushes(range(3)))
    exact = Run("size", url, name, "--exact")
    assert exact.rows[0][:5] == [name, "1,400", "0", "0", "3"]
    limited = Run("size", url, name)
    assert limited.rows[0][:5] in ([name, "1,000+", "0", "0", "3"], exact.rows[0][:5]), "Redis counts all at once"
    (mine,) = Run("size", url, name, "--json").json
    assert (mine["ready"], mine["capped"]) in ((1_000, ["ready"]), (1_400, []))
    assert [one.ready for one in admin_sizes.sizes(url, [name])] == [1_400]


def test_sizes_and_peek(url, store, name):
    store.push(name, pushes([{"n": n} for n in range(3)]))
    store.push(name, pushes([9], delay=600_000))
    store.push(f"{name}.dead", pushes([7]))
    store.reserve(name, "etl/3fa9c1/7", 1)
    sizes = Run("size", url, name)
    (row,) = sizes.rows
    assert row[:5] == [name, "2", "1", "1", "1"] and sizes.err == ""
    told = Run("size", url, "--json").json
    (mine,) = [one for one in told if one["queue"] == name]
    assert mine | {"oldest": 0} == {
        "queue": name, "ready": 2, "scheduled": 1, "reserved": 1, "dead": 1, "oldest": 0, "paused": False,
        "retained": 0, "capped": [],
    }  # fmt: skip
    assert [one["ready"] for one in told if one["queue"] == f"{name}.dead"] == [1]
    unknown = Run("size", url, f"{name}x")
    assert unknown.code == 2 and f"did you mean '{name}" in unknown.err

    peeked = Run("peek", url, name, "--limit", 2)
    assert [row[-1] for row in peeked.rows] == ["0}", "1}"]
    ids = [one["id"] for one in lines(Run("peek", url, name, "--json").out)]
    assert len(ids) == 4
    assert Run("peek", url, name, "-m", ids[1]).out == '{"n": 1}\n'
    gone = Run("peek", url, name, "-m", "6b01b3b5957fe46c72000000")
    assert (gone.code, gone.out) == (1, "")
    assert gone.err == f"{name} holds no message with id '6b01b3b5957fe46c72000000'\n"
    nothing = Run("peek", url, f"{name}.other")
    assert (nothing.code, nothing.out) == (2, "")
    assert f"queue '{name}.other' does not exist" in nothing.err and f"did you mean '{name}" in nothing.err
    Run("pop", url, f"{name}.dead")
    drained = Run("peek", url, f"{name}.dead")
    assert (drained.code, drained.out, drained.err) == (0, "", f"{name}.dead is empty\n")


def test_messages_are_moved(url, store, name, monkeypatch):
    store.push(name, pushes(list(range(1_500))))
    monkeypatch.setattr(admin_queues, "STEP", 1_000)
    store.reserve(name, "etl/3fa9c1/7", 10)
    wrong = Run("move", url, name, f"{name}.other")
    assert wrong.code == 2 and "--create" in wrong.err
    assert Run("move", url, name, f"{name}.other", "--create", "--limit", 5).out == (
        f"5 messages moved from {name} to {name}.other\n"
    )
    ids = [one["id"] for one in lines(Run("peek", url, name, "--limit", 20, "--json").out)]
    chosen = Run("move", url, name, f"{name}.other", "--id", ids[-1], "--id", ids[0], "--json")
    assert chosen.json == {"queue": name, "to": f"{name}.other", "moved": 1}  # the first one is held
    assert Run("move", url, name, f"{name}.other", "--json").json["moved"] == 1_484
    assert (store.sizes(name).total, store.sizes(f"{name}.other").ready) == (10, 1_490)


# --- what others bring ----------------------------------------------------------------------------


def test_pause_and_resume(url, store, name):
    store.push(name, pushes([1]))
    assert Run("pause", url, name).out == f"{name} is paused\n"
    assert Run("size", url, name, "--json").json[0]["paused"] is True
    for command in ("pop", "reserve", "consume"):
        paused = Run(command, url, name, *(["--timeout", "0s"] if command == "consume" else []))
        assert (paused.code, paused.out) == (1, "")
        assert paused.err == (
            f"{name} is paused: no message can be reserved. To resume it: spark-queue resume URL {name}\n"
        )
    waited = Run("pop", url, name, "--timeout", "100ms").err
    assert waited.startswith(f"{name} is paused; waiting until it is resumed: spark-queue resume URL {name}\n")
    assert Run("resume", url, name, "--json").json == {"queue": name, "paused": False}
    assert Run("pop", url, name).out == "1\n"


def test_why_no_message_is_ready_is_said(url, store, name):
    store.push(name, pushes([1, 2, 3]))
    store.push(name, pushes([4], delay=600_000))
    store.reserve(name, "etl/3fa9c1/7", 3)
    assert Run("pop", url, name).err == f"no message of {name} is ready (1 scheduled, 3 reserved)\n"
    missing = Run("reserve", url, f"{name}x")
    assert missing.code == 1
    assert missing.err == f"no message of {name}x is ready: there is no such queue; did you mean '{name}'?\n"


def test_statistics(url, store, name):
    Run("push", url, name, input="1\n2\n3\n")
    Run("pop", url, name, "--limit", 2)
    told = Run("stats", url, name, "--json").json[name]
    assert told["put"] == 3 and told["get"] + told["commit"] == 2 and told["paused"] is False
    assert name in Run("stats", url).out
    looks = admin_sizes.watch(url, [name], interval=0.2)
    assert next(looks)[0].pushed is None
    store.push(name, pushes([4]))
    with Queue(store, name) as queue:
        queue.commit(*queue.reserve(1))
    store.write_counts()
    (flow,) = next(looks)
    assert (flow.pushed or 0) > 0 and (flow.done or 0) > 0


def test_history_and_replay(url, store, name):
    with Queue(url, name, consumer="me", history=3600) as queue:
        queue.push_many([{"n": n} for n in range(3)])
        queue.commit(*queue.reserve(3))
    told = Run("history", url, name, "--json").json
    assert [(one["payload"], one["consumer"], one["outcome"]) for one in told] == [
        ({"n": n}, "me", "commit") for n in range(3)
    ]
    shown = Run("history", url, name, "--limit", 2)
    assert [row[0] for row in shown.rows] == [one["id"] for one in told[1:]]
    assert "only 2 messages shown" in shown.err
    none = Run("history", url, name, "--consumer", "you")
    assert (none.code, none.out, none.err) == (0, "", f"the history of {name} has no messages of this kind\n")
    dry = Run("replay", url, name, "again", "--since", "1h", "--dry-run")
    assert (dry.code, dry.out) == (0, f"3 messages of {name} would be pushed to {name}\n")
    wrong = Run("replay", url, name, "again", "--to", f"{name}.other")
    assert wrong.code == 2 and "--create" in wrong.err
    some = Run("replay", url, name, "again", "--to", f"{name}.other", "--create", "--id", told[1]["id"], "--json")
    assert some.json == {"queue": name, "name": "again", "to": f"{name}.other", "dry_run": False, "pushed": 1}
    assert Run("pop", url, f"{name}.other").out == '{"n": 1}\n'
    assert Run("history", url, name, "--outcome", "ded").code == 2
    assert Run("history", url, name, "--outcome", "finished").err == none.err


# --- by rfq's words -------------------------------------------------------------------------------


def test_rfqs_words_on_every_store(url, store, name):
    first = Run("publish", url, "-t", name, "-m", '{"n": 1}')
    second = Run("publish", url, name, "--message", '{"n": 2}', "--json").json["id"]
    ids = [first.out.strip(), second]
    assert (first.code, first.err) == (0, "")
    assert name in Run("list-topics", url).out.splitlines()
    assert name in Run("list-topics", url, "--json").json
    assert sorted(Run("list-queue", url, "-t", name).out.split()) == sorted(ids)
    assert Run("list-queue", url, "-t", name, "-q", "nextlog").out == ""
    assert [row[:5] for row in Run("info", url, name).rows] == [[name, "2", "0", "0", "0"]]
    assert json.loads(Run("peek", url, "-t", name, "-m", ids[0]).out) == {"n": 1}
    tag = Run("reserve", url, name, "--json").json["tag"]
    held = Run("list-queue", url, "-t", name, "-q", "nextlog").out.split()
    assert len(held) == 1
    assert Run("list-queue", url, "-t", name, "-q", "backlog", "--json").json == [id for id in ids if id not in held]
    assert Run("harvest", url, "-t", name).out.split() == held
    assert [one.tries for one in Queue(store, name).peek()] == [0, 0]
    assert Run("commit", url, name, tag).code == 1
    assert Run("harvest", url, "-t", name, "--json").json == []
    assert json.loads(Run("consume", url, "-t", name).out) in ({"n": 1}, {"n": 2})
    assert store.sizes(name).total == 1
    Run("reserve", url, name, "--limit", 1)
    store.push(name, pushes([3]))
    store.push(name, pushes([4], delay=600_000))
    assert len(Run("purge-queue", url, "-t", name, "--yes").out.split()) == 2
    assert (store.sizes(name).total, store.sizes(name).reserved) == (1, 1)
    assert len(Run("purge-queue", url, "-t", name, "-q", "nextlog", "--yes", "--json").json) == 1
    assert store.sizes(name).total == 0
    none = Run("consume", url, "-t", name, "--timeout", "100ms")
    assert (none.code, none.out) == (1, "")


def test_rfqs_words_are_refused_where_they_mean_nothing(sqlite_url, store, name):
    Run("push", sqlite_url, "q", input="1")
    front = Run("publish", sqlite_url, "-t", "q", "-m", "2", "--front")
    assert front.code == 2 and "only the layout rfq can push to the front" in front.err
    old = Run("harvest", sqlite_url, "-t", "q", "--older-than", "1m")
    assert old.code == 2 and "layout rfq" in old.err
    assert Run("size", sqlite_url, "q", "--json").json[0]["ready"] == 1
    for call in (["publish", sqlite_url, "-m", "1"], ["publish", sqlite_url, "q"], ["list-queue", sqlite_url],
                 ["list-queue", sqlite_url, "q", "-t", "q"], ["list-queue", sqlite_url, "-t", "q", "-q", "log"],
                 ["purge-queue", sqlite_url, "-t", "q"], ["completions", "fish"], ["completions"]):  # fmt: skip
        assert Run(*call).code == 2, call


def test_a_consume_that_waits_ends_by_ctrl_c(url, name):
    with subprocess.Popen([*telling(), "consume", url, "-t", name], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(120) == 130 and waiting.stdout.read() == ""


# --- watch, doctor, itself ------------------------------------------------------------------------


def test_watch_prints_lines(url, store, name):
    store.push(name, pushes([1, 2, 3]))
    looks = lines(Run("watch", url, name, "--json", "--interval", "100ms", "--count", 2).out)
    assert [look["queues"][0]["ready"] for look in looks] == [3, 3]
    assert looks[0]["queues"][0]["change"] is None and looks[1]["queues"][0]["change"] == 0
    assert looks[0]["at"] < looks[1]["at"] and looks[0]["at"].endswith("Z")
    shown = Run("watch", url, name, "--count", 1)
    assert shown.code == 0 and name in shown.out and "ready" in shown.out
    assert Run("watch", url, name, "--interval", "1ms").code == 2


def test_watch_sees_changes_and_ends_by_ctrl_c(url, store, name):
    call = [*arguments(), "watch", url, name, "--json", "--interval", "200ms"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["queues"][0]["ready"] == 0
        store.push(name, pushes(list(range(50))))
        while not (look := json.loads(watching.stdout.readline())["queues"][0])["ready"]:
            pass
        assert look["ready"] == 50 and look["change"] > 0
        watching.send_signal(signal.SIGINT)
        assert watching.wait(120) == 130


def on_terminal(*args) -> str:
    """What a program shows on a terminal."""
    ours, its = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "140"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen([*arguments(), *map(str, args)], stdin=its, stdout=its, stderr=its, env=env) as running:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # that is how the other end is told to be gone
            while part := os.read(ours, 65536):
                shown += part
        assert running.wait(120) == 0
    os.close(ours)
    return shown.decode()


def test_a_terminal_gets_colours_bars_and_progress(sqlite_url, tmp_path):
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f"{n}\n" for n in range(3_000)))
    pushed = on_terminal("push", sqlite_url, "departures", file)
    assert "pushing" in pushed and "3,000 messages pushed to departures" in pushed
    sized = on_terminal("size", sqlite_url)
    assert "\x1b[32m█" in sized and "3,000" in sized
    watched = on_terminal("watch", sqlite_url, "--count", 3, "--interval", "200ms")
    assert watched.count("departures") >= 3 and "▁▁▁" in watched and "\x1b[1A" in watched
    assert "█" not in Run("size", sqlite_url).out and "\x1b" not in Run("watch", sqlite_url, "--count", 1).out


def test_the_doctor_looks_at_the_database(url, store, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    found = Run("doctor", url, "--json").json["findings"]
    states = {one["what"]: one["state"] for one in found}
    assert states["database"] == states["clocks"] == states["python"] == states["workers"] == "good"
    own = {
        "sqlite": {"journal", "file system"},
        "mongodb": {"transactions", "indexes"},
        "redis": {"append-only file"},
    }
    assert own[url.partition(":")[0]] <= states.keys()
    name, _, number = store.server().partition(" ")
    told = Run("version", url).out.splitlines()
    assert told[0].startswith("spark-queue ") and told[1] == f"{name} {number}" and number[0].isdigit()
    assert Run("doctor", url).out.count("\n") >= len(found)


def test_commands_come_back_from_a_shell(sqlite_url, monkeypatch):
    Run("push", sqlite_url, "departures", input="1")
    script = Run("completions", "bash").out

    def completed(line: str) -> list[str]:
        run = f'{script}\nspark-queue() {{ {" ".join(arguments())} "$@"; }}\n'
        run += f"COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
        run += '_spark_queue_completion spark-queue; printf "%s\\n" "${COMPREPLY[@]}"'
        env = os.environ | {"SPARK_QUEUE_URL": ""}
        return subprocess.run(["bash", "-c", run], env=env, capture_output=True, text=True, check=True).stdout.split()

    assert completed("spark-queue rel") == ["release"]
    assert completed("spark-queue deadletter re") == ["redrive"]
    for line in (f"size {sqlite_url} dep", f"peek {sqlite_url} -t "):  # a busy machine may take longer than it has
        wait_until(lambda: completed(f"spark-queue {line}") == ["departures"], description=line)  # noqa: B023
    assert completed("spark-queue size redis://127.0.0.1:1/0 d") == []
    assert "--delay" in completed("spark-queue push --de")
    assert Run("completions", "zsh").out.startswith("#compdef spark-queue\n")
