"""Events over HTTP: hub-queue's resources, in its README's words and in its newest code's."""

from __future__ import annotations

import threading
import uuid
from xml.etree import ElementTree

import httpx
import pytest

from spark_queue import open_store
from spark_queue.events import Events
from spark_queue.events.event import HEARTBEAT_SOURCE, STATUS_PREFIX
from tests.serving import serving

HUB, BEAT = "/v1/resources/hub-queue", "/v1/resources/hub-queue-heartbeat"
NS = "{http://noslogan.org/hub-queue/event-list}"
FINISHED, FAILED = f"{STATUS_PREFIX}finished", f"{STATUS_PREFIX}failed"

WORK = """
def note(event, config):
    if event.payload == "fail":
        raise ValueError("as it was told")
    if event.payload == "own":
        return "http://example.org/own"
"""

DECLARED = """
executors:
  - {source: tests, type: work, function: work_of_the_test:note}
heartbeats:
  - {id: OneMinute, type: ping}
  - {id: OneMinute, type: work, source: tests}
"""


@pytest.fixture(scope="session")
def hub(scheme, urls, tmp_path_factory):
    """A server of events in each store, and the events themselves."""
    folder, queue = tmp_path_factory.mktemp("hub"), f"t{uuid.uuid4().hex[:16]}"
    (folder / "work_of_the_test.py").write_text(WORK)
    (folder / "work.yaml").write_text(DECLARED)
    url = urls[scheme]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "tests.serving.ROOT", f"{folder}:{__file__.rpartition('/tests/')[0]}"
        )  # a package in another folder
        args = ["--url", f"ns={url}", "--events", f"ns/{queue}", "--conf", folder / "work.yaml"]
        with serving(folder, *args) as server, Events(url, queue) as events:
            yield server, events
    with open_store(url) as store:
        for name in (queue, f"{queue}.log", f"{queue}.gone"):
            store.drop(name)


@pytest.fixture
def events(hub):
    hub[1].clear([one.event.id for one in hub[1].all()])
    return hub[1]


@pytest.fixture
def http(hub):
    with httpx.Client(base_url=hub[0].url, timeout=120, headers={"accept": "application/json"}) as client:
        yield client


def test_take_and_execute_in_every_format(http, events):
    made = [events.create("tests", "work", payload) for payload in (None, "fail", "own")]
    text = http.get(HUB, params={"rs:count": 1}, headers={"accept": "text/plain"})
    assert (text.headers["content-type"], text.text) == ("text/plain; charset=utf-8", made[0])
    xml = http.get(HUB, params={"rs:count": 1}, headers={"accept": "text/xml"})
    root = ElementTree.fromstring(xml.content)
    assert xml.headers["content-type"] == "text/xml; charset=utf-8"
    assert root.tag == f"{NS}event-list" and [(one.tag, one.text) for one in root] == [(f"{NS}event-uri", made[1])]
    json = http.get(HUB)
    assert json.json() == {"eventList": [made[2]]}
    assert events.status(made) == dict.fromkeys(made, "pending")

    first = http.put(HUB, json=[made[0]], headers={"accept": "text/plain"})
    assert first.text == f"{made[0]},{FINISHED}"
    second = http.put(HUB, content=xml.content, headers={"content-type": "text/xml", "accept": "text/xml"})
    (result,) = ElementTree.fromstring(second.content)
    assert [one.tag for one in result] == [f"{NS}event-uri", f"{NS}result"] and [one.text for one in result] == [
        made[1],
        FAILED,
    ]
    third = http.put(HUB, content=json.content, headers={"content-type": "application/json"})
    assert third.json() == {"resultList": [{"uri": made[2], "result": "http://example.org/own"}]}
    assert events.status(made) == {made[0]: "finished", made[1]: "failed", made[2]: "http://example.org/own"}


def test_in_the_form_of_its_newest_code(http, events):
    made = [events.create("tests", "work") for _ in range(3)]
    head = {"rs:format": "head"}
    assert http.get(HUB, params=head | {"rs:count": 2}).json() == made[:2]
    root = ElementTree.fromstring(http.get(HUB, params=head, headers={"accept": "text/xml"}).content)
    assert [(one.tag, one.text) for one in root] == [(f"{NS}event-id", made[2])]
    body = f'<e:event-list xmlns:e="{NS[1:-1]}"><e:event><e:event-id>{made[0]}</e:event-id></e:event></e:event-list>'
    done = http.put(HUB, params=head, content=body, headers={"content-type": "application/xml", "accept": "text/xml"})
    (event,) = ElementTree.fromstring(done.content)
    assert [(one.tag, one.text) for one in event] == [(f"{NS}event-id", made[0]), (f"{NS}event-status", FINISHED)]
    again = http.put(HUB, params=head, json=[{"id": made[1]}, f"/noslogan.org/hub-queue/queue/{made[2]}.xml"])
    assert again.json() == [{"id": made[1], "status": FINISHED}, {"id": made[2], "status": FINISHED}]


def test_ten_are_taken_priority_first(http, events):
    made = [events.create("tests", "work") for _ in range(11)]
    urgent = events.create("tests", "work", priority=True)
    assert http.get(HUB).json()["eventList"] == [urgent, *made[:9]]
    assert http.get(HUB, params={"rs:count": 0}).json() == {"eventList": []}
    assert http.get(HUB, headers={"accept": "*/*"}).headers["content-type"].startswith("text/xml")
    assert http.get(HUB, headers={"accept": "text/plain"}).text == ""


def test_what_is_not_pending_is_left_alone(http, events):
    fresh, unknown = events.create("tests", "work"), "0123456789abcdef01234567"
    done = http.put(HUB, json=[fresh, unknown]).json()["resultList"]
    assert done == [{"uri": fresh, "result": f"{STATUS_PREFIX}new"}, {"uri": unknown, "result": ""}]
    http.get(HUB)
    assert http.put(HUB, json=[fresh]).json()["resultList"] == [{"uri": fresh, "result": FINISHED}]
    assert http.put(HUB, json=[fresh]).json()["resultList"] == [{"uri": fresh, "result": FINISHED}]


def test_without_executor_an_event_fails(http, events):
    lonely = events.create("tests", "nobody")
    http.get(HUB)
    assert http.put(HUB, json=[lonely]).json()["resultList"] == [{"uri": lonely, "result": FAILED}]


def test_a_heartbeat_makes_its_events(http, events):
    made = http.put(BEAT, params={"rs:heartbeat": "OneMinute"}).json()["eventList"]
    found = events.get(made)
    assert [(found[id].event.source, found[id].event.type) for id in made] == [
        (HEARTBEAT_SOURCE, "ping"),
        ("tests", "work"),
    ]
    assert len(http.put(BEAT, params={"rs:id": "OneMinute", "rs:format": "head"}).json()) == 2
    missing = http.put(BEAT)
    assert missing.status_code == 400 and missing.json()["detail"] == "Missing 'rs:heartbeat' parameter"
    unknown = http.put(BEAT, params={"rs:heartbeat": "OneMinut"})
    assert unknown.status_code == 400 and "did you mean 'OneMinute'" in unknown.json()["detail"]


WRONG = {
    "no number": ("GET", HUB, {"params": {"rs:count": "many"}}, 400),
    "less than none": ("GET", HUB, {"params": {"rs:count": -1}}, 400),
    "too many": ("GET", HUB, {"params": {"rs:count": 10_001}}, 400),
    "a parameter without rs:": ("GET", HUB, {"params": {"count": 1}}, 400),
    "another form": ("GET", HUB, {"params": {"rs:format": "tail"}}, 400),
    "another type wanted": ("GET", HUB, {"headers": {"accept": "image/png, text/xml;q=0"}}, 415),
    "a wrong weight": ("GET", HUB, {"headers": {"accept": "text/xml;q=x"}}, 415),
    "another type sent": ("PUT", HUB, {"content": "x", "headers": {"content-type": "text/plain"}}, 415),
    "no type sent": ("PUT", HUB, {"content": "[]"}, 415),
    "another answer to a PUT": ("PUT", HUB, {"json": [], "headers": {"accept": "image/png"}}, 415),
    "no list": ("PUT", HUB, {"json": {"events": []}}, 400),
    "no ids": ("PUT", HUB, {"json": [1]}, 400),
    "an empty id": ("PUT", HUB, {"json": [""]}, 400),
    "no JSON": ("PUT", HUB, {"content": "[", "headers": {"content-type": "application/json"}}, 400),
    "no XML": ("PUT", HUB, {"content": "<a", "headers": {"content-type": "text/xml"}}, 400),
    "other XML": ("PUT", HUB, {"content": "<a/>", "headers": {"content-type": "text/xml"}}, 400),
    "entities": (
        "PUT", HUB,
        {"content": '<!DOCTYPE a [<!ENTITY b "c">]><event-list><event-uri>&b;</event-uri></event-list>',
         "headers": {"content-type": "text/xml"}}, 400,
    ),
    "POST": ("POST", HUB, {}, 405),
    "DELETE": ("DELETE", HUB, {}, 405),
    "GET of a heartbeat": ("GET", BEAT, {}, 405),
    "POST of a heartbeat": ("POST", BEAT, {}, 405),
    "DELETE of a heartbeat": ("DELETE", BEAT, {}, 405),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_mistake_is_reported_and_reserves_nothing(http, events, call):
    waiting = events.create("tests", "work")
    method, path, how, status = call
    refused = http.request(method, path, **how)
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert events.status([waiting]) == {waiting: "new"}


def test_xml_wins_where_a_caller_likes_all_as_much(http, events):
    for accept, media in (
        ("application/json, text/xml", "text/xml"),
        ("application/json, text/xml;q=0.5", "application/json"),
        ("text/*", "text/xml"),
        ("application/*;q=0.1, text/plain", "text/plain"),
    ):
        assert http.get(HUB, headers={"accept": accept}).headers["content-type"].partition(";")[0] == media


def test_each_event_goes_to_one_caller_and_runs_once(hub, events):
    made = set(events.create_batch("tests", "work", uris=[str(n) for n in range(160)], max_uris=1))
    taken: list[list[str]] = []
    executed: list[dict[str, str]] = []

    def call():
        with httpx.Client(base_url=hub[0].url, timeout=120, headers={"accept": "application/json"}) as http:
            while ids := http.get(HUB, params={"rs:count": 3}).json()["eventList"]:
                taken.append(ids)
                executed.append({one["uri"]: one["result"] for one in http.put(HUB, json=ids).json()["resultList"]})

    threads = [threading.Thread(target=call) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    got = [id for ids in taken for id in ids]
    assert len(got) == len(set(got)) and set(got) == made
    assert {status for one in executed for status in one.values()} == {FINISHED}
    begun = [id for record in events.log.records() if record.went == "executing" for id in record.ids if id in made]
    assert sorted(begun) == sorted(made)


def test_a_server_without_events_says_so(server):
    refused = httpx.get(server.url + HUB)
    assert refused.status_code == 404 and "--events" in refused.json()["detail"]
