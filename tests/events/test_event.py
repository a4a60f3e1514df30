"""Events, executors and heartbeats without a store; hub-queue's cases by their names."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, date, datetime
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.errors import GraphError, MessageError, OptionError
from spark_queue.events import EventSettings, Executor, Executors, declared_in, execution, executors_in, heartbeats_in
from spark_queue.events.builtin import internal_executors
from spark_queue.events.event import (
    BASE,
    HEARTBEAT_SOURCE,
    STATUSES,
    Event,
    check_name,
    due_time,
    normalize_payload,
    short_status,
    split_uris,
    status_uri,
)
from spark_queue.events.execution import TimeLimitExceeded, run_event, time_limit
from spark_queue.events.heartbeats import find_heartbeats
from spark_queue.messages.message import Message
from spark_queue.messages.payload import decode, encode
from spark_queue.options.parsers import duration
from spark_queue.stores.conformance.waiting import wait_until

CONF = Path(__file__).parents[2] / "conf"
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(type="t", source="s", **facts):
    return Event("id", source, type, **{"created": NOW} | facts)


def restored(one):
    """What comes back of an event that was a message."""
    payload, kind = encode(one.document())
    return Event.from_message(Message(one.id, "q", decode(payload, kind), {}, one.mature, one.tries))


# --- hub-queue: queue/payload ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "plain", "kind"),
    [
        ({"a": "text", "b": fromstring("<x>1</x>")}, {"a": "text", "b": "<x>1</x>"}, "map"),
        ({"object": {"n": 1}}, {"object": {"n": 1}}, "map"),
        (["one", "two", 3], ["one", "two", 3], "array"),
        (fromstring("<a b='c'><d/>é</a>"), '<a b="c"><d />é</a>', "element"),
        (("node",), ["node"], "array"),
        (NOW, "2026-01-31T12:00:00+00:00", "atomic"),
        (date(2026, 1, 31), "2026-01-31", "atomic"),
        ("text", "text", "atomic"),
        (3, "3", "atomic"),
        (True, "true", "atomic"),
        (None, None, "none"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_queue_payload(payload, plain, kind):
    assert normalize_payload(payload) == (plain, kind)
    one = event(payload=plain, kind=kind)
    again = restored(one)
    assert (again.payload, again.kind) == (plain, kind)
    assert normalize_payload(again.payload)[0] == plain
    if isinstance(payload, datetime):
        assert datetime.fromisoformat(str(again.payload)) == payload


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(
    st.dictionaries(texts, values, max_size=4) | st.lists(values, max_size=4) | texts, st.lists(texts), st.booleans()
)
def test_an_event_comes_back_as_it_was(payload, uris, priority):
    plain, kind = normalize_payload(payload)
    one = event(payload=plain, kind=kind, uris=tuple(uris), priority=priority, user="u", host="h")
    assert restored(one) == one


def test_bytes_are_no_payload():
    with pytest.raises(MessageError, match=r"^payload: an event cannot hold bytes"):
        normalize_payload(b"x")


@pytest.mark.parametrize("payload", ["text", ["s"], {"source": "s"}, {"source": 1, "type": "t"}])
def test_another_message_is_no_event(payload):
    with pytest.raises(ValueError, match="it is not an event"):
        Event.from_message(Message("id", "q", payload))


def test_an_event_of_another_program_needs_source_and_type_only():
    one = Event.from_message(Message("id", "q", {"source": "s", "type": "t", "payload": [1]}, {}, NOW))
    assert (one.payload, one.kind, one.uris, one.created) == ([1], "array", (), NOW)


# --- names ----------------------------------------------------------------------------------------


def test_statuses_have_short_names_and_uris():
    assert [status_uri(one) for one in STATUSES] == [
        f"{BASE}status/{name}" for name in ("new", "pending", "executing", "finished", "failed")
    ]
    for one in STATUSES:
        assert short_status(status_uri(one)) == one == short_status(status_uri(one, "urn:x:"), "urn:x:")
    assert short_status("http://my/status/half") == status_uri("http://my/status/half") == "http://my/status/half"


@pytest.mark.parametrize("name", ["", "two words", None, 3, "line\n"])
def test_a_bad_source_or_type_is_refused(name):
    with pytest.raises(OptionError, match="must be text without spaces"):
        check_name(name, "source")


@pytest.mark.parametrize(("number", "sizes"), [(1001, [500, 500, 1]), (500, [500]), (1, [1]), (0, [])])
def test_uris_are_split(number, sizes):
    uris = [str(n) for n in range(number)]
    parts = split_uris(uris)
    assert [len(one) for one in parts] == sizes
    assert [one for part in parts for one in part] == uris


def test_uris_are_a_list_of_texts():
    for wrong in ("/one", [""], [3]):
        with pytest.raises(OptionError, match="uris must be a list of texts"):
            split_uris(wrong)
    with pytest.raises(OptionError, match="max_uris must be at least 1"):
        split_uris(["a"], 0)


def test_priority_comes_before_all_without_and_keeps_the_order():
    later = datetime(2026, 2, 1, tzinfo=UTC)
    assert due_time(NOW, True) < due_time(later, True) < datetime(2000, 1, 1, tzinfo=UTC) < due_time(NOW, False)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000), ("PT30M", 1_800_000), ("P1DT12H", 129_600_000), ("PT0.5S", 500), ("P2W", 1_209_600_000),
        ("PT1H30M5S", 5_405_000), ("30s", 30_000),
    ],
)  # fmt: skip
def test_durations_of_iso_8601(text, ms):
    assert duration(text) == ms


@pytest.mark.parametrize("text", ["P", "PT", "P1M", "P1Y", "T1H", "PT-1S", "P1DT"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="a duration such as"):
        duration(text)


# --- executors ------------------------------------------------------------------------------------


def test_an_executor_with_several_sources_and_types():
    one = Executor(["a", "b"], ["x", "y"], print)
    fits = [source + type for source in "abc" for type in "xyz" if one.matches(event(type, source))]
    assert fits == ["ax", "ay", "bx", "by"]


def test_the_first_of_doubled_executors_wins_and_the_others_are_reported():
    first, second = Executor("s", ["t", "u"], len), Executor(["s", "r"], "t", print)
    executors = Executors([first, second])
    assert executors.find(event("t")) is first
    assert executors.find(event("t", "r")) is second
    assert executors.find(event("v")) is None
    assert executors.overlap_warnings() == ["events t of s go to len, and not to print after it"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"source": ()}, "an executor needs a source"),
        ({"type": "two words"}, "type 'two words' must be text without spaces"),
        ({"function": "nowhere"}, "function 'nowhere' must be a function, or module:function"),
    ],
)
def test_an_executor_that_cannot_be(facts, message):
    with pytest.raises(OptionError, match=message):
        Executor(**{"source": "s", "type": "t", "function": print} | facts)


def test_a_missing_function_is_reported_before_events_come():
    with pytest.raises(OptionError, match=r"has no function 'nothin'; did you mean 'nothing'\?"):
        Executors([Executor("s", "t", "spark_queue.events.examples:nothin")]).check()
    with pytest.raises(OptionError, match="No module named 'nowhere'"):
        Executors([Executor("s", "t", "nowhere:f")]).check()


# --- what becomes of an event ---------------------------------------------------------------------


def become(function, tries=0, **facts):
    made = Executors([Executor("s", "t", function, **facts)])
    with time_limit() as within:
        return run_event(event(tries=tries), made, EventSettings(), within)


@pytest.mark.parametrize(
    ("said", "status"),
    [(None, "finished"), ("", "finished"), ("half", "half"), (f"{BASE}status/finished", "finished"), ("new", "new")],
)
def test_what_a_function_gives_is_the_status(said, status):
    result = become(lambda event, config: said)
    assert (result.status, result.error) == (status, "")


@pytest.mark.parametrize(
    ("said", "message"),
    [(3, "as a text"), ("pending", "cannot return the status"), ("two words", "cannot be an outcome")],
)
def test_what_no_status_can_be_fails_the_event(said, message):
    result = become(lambda event, config: said)
    assert result.status == "failed" and message in result.error


def test_an_error_of_a_function_is_reported_with_its_own_trace_only():
    def work(event, config):
        raise KeyError("missing")

    result = become(work)
    assert result.status == "failed" and result.error.strip().endswith("KeyError: 'missing'")
    assert "in work" in result.error and "events/execution.py" not in result.error
    assert become(lambda event, config: exit(3)).status == "failed"


def test_a_missing_executor_fails_the_event():
    with time_limit() as within:
        result = run_event(event("other"), Executors(), EventSettings(), within)
    assert (result.status, result.error) == ("failed", "there is no executor for events other of s")


def test_retries_come_later_and_later_and_end():
    def work(event, config):
        raise ValueError(config)

    reported = [become(work, tries, retries=3, backoff=100) for tries in range(5)]
    assert [(one.status, one.retry_delay) for one in reported] == [
        ("new", 100), ("new", 200), ("new", 400), ("failed", None), ("failed", None),
    ]  # fmt: skip


def test_a_function_that_takes_too_long_is_ended():
    ended = []

    def stubborn(event, config):
        try:
            time.sleep(30)
        except Exception:  # noqa: BLE001  as a function may
            time.sleep(30)
        ended.append("by itself")

    result = become(stubborn, time_limit=50)
    assert ended == []
    assert result.status == "failed" and "took longer than 0.05 s" in result.error


def test_a_time_limit_holds_in_any_thread(monkeypatch):
    monkeypatch.setattr(execution, "THREAD_GRACE", 0.01)  # of executors, which have no settings
    reported, let = [], threading.Event()

    def spin():
        while not let.is_set():
            pass

    def call():
        with time_limit() as within:
            for work in (spin, lambda: let.wait(60)):
                try:
                    within(0.05, work)
                except TimeLimitExceeded:
                    reported.append("up")
            reported.append(within(60, lambda: 3))
            try:
                within(60, lambda: {}["x"])
            except KeyError as error:
                reported.append(error.args[0])

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: not thread.is_alive() and len(running()) < 2, description="that a limit ends what Python runs")
    assert reported == ["up", "up", 3, "x"]
    let.set()
    wait_until(lambda: not running())


def running():
    """The threads in which functions with a limit run."""
    return [one for one in threading.enumerate() if one.name == "event"]


# --- files ----------------------------------------------------------------------------------------

YAML = """\
executors:
  - source: http://example.org/flights
    type: [landed, departed]
    function: spark_queue.events.examples:nothing
    config: {deep: [1, 2]}
    timeLimit: PT10M
    retries: 3
    backoff: 10s
    where: driver
heartbeats:
  - {id: OneMinute, type: ping, payload: {a: 1}}
  - {id: OneMinute, source: mine, type: pong}
  - {id: OneMinute, source: skipped}
settings:
  pendingTimeout: PT5M
  detailedLog: true
"""

XML = """\
<?xml version="1.0" encoding="UTF-8"?>
<q:config xmlns:q="http://noslogan.org/hub-queue">
  <q:executor>
    <q:source>a</q:source>
    <q:source>b</q:source>
    <q:type>x</q:type>
    <q:type>y</q:type>
    <q:module>spark_queue.events.examples:nothing</q:module>
    <q:language>python</q:language>
    <q:config><limit>3</limit></q:config>
  </q:executor>
  <q:heartbeat-config>
    <q:description>one</q:description>
    <q:heartbeat-id>OneMinute</q:heartbeat-id>
    <q:source>s</q:source>
    <q:type>ping</q:type>
  </q:heartbeat-config>
  <q:heartbeat-config>
    <q:hearbeat-id>FiveMinute</q:hearbeat-id>
    <q:type>ping</q:type>
    <q:payload>text</q:payload>
  </q:heartbeat-config>
  <q:heartbeat-config>
    <q:heartbeat-id>FifteenMinute</q:heartbeat-id>
    <q:source>s</q:source>
  </q:heartbeat-config>
</q:config>
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="conf.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_declares_executors_heartbeats_and_settings(file, caplog):
    declared = declared_in(file(YAML))
    (one,) = declared.executors
    assert (one.type, one.config, one.time_limit, one.retries) == (
        ("landed", "departed"),
        {"deep": [1, 2]},
        600_000,
        3,
    )
    assert (one.backoff, one.where, one.place) == (10_000, "driver", "conf.yaml:2")
    assert [(beat.source, beat.type, beat.payload) for beat in declared.heartbeats] == [
        (HEARTBEAT_SOURCE, "ping", {"a": 1}), ("mine", "pong", None),
    ]  # fmt: skip
    assert declared.settings == EventSettings(pending_timeout=300_000, detailed_log=True)
    assert "line 13: heartbeat 'OneMinute' is skipped: it has no type" in caplog.text


def test_a_mistake_after_a_skipped_heartbeat_has_its_own_line(file):
    path = file("heartbeats:\n  - id: One\n  - id: Two\n    type: ping\n    sourc: s\n", "beats.yaml")
    with pytest.raises(GraphError, match=r"line 5, heartbeat 2, sourc: unknown key; did you mean 'source'\?"):
        heartbeats_in(path)


def test_the_xml_of_hub_queue_is_read_with_both_spellings_of_heartbeat_id(file, caplog):
    path = file(XML, "conf.xml")
    (one,) = executors_in(path)
    assert (one.source, one.type, one.config) == (("a", "b"), ("x", "y"), "<limit>3</limit>")
    assert one.load_function()(event(), None) is None
    assert [(beat.id, beat.source, beat.payload) for beat in heartbeats_in(path)] == [
        ("OneMinute", "s", None), ("FiveMinute", HEARTBEAT_SOURCE, "text"),
    ]  # fmt: skip
    assert "line 23: heartbeat 'FifteenMinute' is skipped: it has no type" in caplog.text


#: The examples of hub-queue's README, word for word.
README_HEARTBEATS = """\
<q:heartbeat-config xmlns:q="http://noslogan.org/hub-queue">
   <q:description>Generate an event every minute</q:description>
   <q:hearbeat-id>OneMinute</q:hearbeat-id>
   <q:source>mysource</q:source>
   <q:type>test-type</q:type>
</q:heartbeat-config>
""", """\
<q:heartbeat-config xmlns:q="http://noslogan.org/hub-queue">
    <q:description>Kick of a reset every five minutes</q:description>
    <q:hearbeat-id>FiveMinute</q:hearbeat-id>
    <q:source>http://noslogan.org/hub-queue/queue/source/internal</q:source>
    <q:type>http://noslogan.org/hub-queue/queue/type/reset</q:type>
</q:heartbeat-config>
"""  # fmt: skip
README_EXECUTOR = """\
<q:executor xmlns:q="http://noslogan.org/hub-queue/">
    <q:source>mysource</q:source>
    <q:type>test-type</q:source>
    <q:module>/queue-modules/test-type-exec.xqy</q:module>
    <q:language>xquery</q:language>
    <q:database>data-hub-STAGING</q:database>
    <q:config>
        <one>1</one>
        <fred>ginger</fred>
    </q:config>
</q:executor>
"""


def test_the_heartbeats_of_hub_queues_readme(file):
    one, two = heartbeats_in(*(file(text, f"{n}.xml") for n, text in enumerate(README_HEARTBEATS)))
    assert (one.id, one.source, one.type, one.payload) == ("OneMinute", "mysource", "test-type", None)
    internal = Executors(internal_executors(None))
    found = internal.find(Event("1", two.source, two.type))
    assert two.id == "FiveMinute" and found is not None and found.place == "internal: reset"


def test_the_executor_of_hub_queues_readme(file):
    with pytest.raises(GraphError, match="line 3: not valid XML: mismatched tag"):
        executors_in(file(README_EXECUTOR))
    mended = README_EXECUTOR.replace("test-type</q:source>", "test-type</q:type>")
    with pytest.raises(GraphError) as refused:
        executors_in(file(mended))
    assert "module: must be a Python module:function, not '/queue-modules/test-type-exec.xqy' in xquery" in str(
        refused.value
    )
    assert "database: an executor in Python opens its databases itself: leave 'data-hub-STAGING' out" in str(
        refused.value
    )
    ours = mended.replace("/queue-modules/test-type-exec.xqy", "spark_queue.events.examples:nothing")
    ours = ours.replace("xquery<", "python<").replace("<q:database>data-hub-STAGING</q:database>", "")
    (one,) = executors_in(file(ours))
    assert (one.source, one.type) == (("mysource",), ("test-type",))
    assert [element.tag for element in fromstring(f"<x>{one.config}</x>")] == ["one", "fred"]


JSON_XML = """\
<json:object xmlns:json="http://marklogic.com/xdmp/json" xmlns:xs="http://www.w3.org/2001/XMLSchema"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
  <json:entry key="text"><json:value xsi:type="xs:string"> a b </json:value></json:entry>
  <json:entry key="number"><json:value xsi:type="xs:integer">12345678901234567890</json:value></json:entry>
  <json:entry key="half"><json:value xsi:type="xs:double">0.5</json:value></json:entry>
  <json:entry key="yes"><json:value xsi:type="xs:boolean">true</json:value></json:entry>
  <json:entry key="nothing"><json:value xsi:nil="true"/></json:entry>
  <json:entry key="list"><json:value><json:array><json:value xsi:type="xs:integer">1</json:value>
    <json:value><json:object/></json:value></json:array></json:value></json:entry>
</json:object>
"""
JSON_VALUE = {
    "text": " a b ", "number": 12345678901234567890, "half": 0.5, "yes": True, "nothing": None, "list": [1, {}],
}  # fmt: skip
MAP_XML = """\
<map:map xmlns:map="http://marklogic.com/xdmp/map" xmlns:xs="http://www.w3.org/2001/XMLSchema"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
  <map:entry key="one"><map:value xsi:type="xs:string">x</map:value></map:entry>
  <map:entry key="two"><map:value><a>1</a></map:value></map:entry>
  <map:entry key="many"><map:value xsi:type="xs:int">1</map:value>
    <map:value xsi:type="xs:int">2</map:value></map:entry>
</map:map>
"""


def heartbeat(payload):
    parts = f"<heartbeat-id>i</heartbeat-id><type>t</type><payload>{payload}</payload>"
    return f"<heartbeat-config>{parts}</heartbeat-config>"


@pytest.mark.parametrize(
    ("content", "value", "kind"),
    [
        ("", None, "none"),
        (" text ", "text", "atomic"),
        ("<a><b>1</b></a>", "<a><b>1</b></a>", "element"),
        ("<a/>", "<a />", "element"),
        ("one <b>two</b> three &lt; <c/>", "one <b>two</b> three &lt; <c />", "element"),
        ("<a>1</a><b>2</b>", "<a>1</a><b>2</b>", "element"),
        (JSON_XML, JSON_VALUE, "map"),
        ('<array xmlns="http://marklogic.com/xdmp/json"><value>x</value></array>', ["x"], "array"),
        (MAP_XML, {"one": "x", "two": "<a>1</a>", "many": [1, 2]}, "map"),
        ("<object>of another namespace</object>", "<object>of another namespace</object>", "element"),
    ],
)
def test_payloads_and_configs_in_xml(file, content, value, kind):
    executor = f"<executor><source>s</source><type>t</type><module>a:b</module><config>{content}</config></executor>"
    declared = declared_in(file(f"<all>{executor}{heartbeat(content)}</all>"))
    assert declared.executors[0].config == declared.heartbeats[0].payload == value
    assert normalize_payload(declared.heartbeats[0].payload) == (value, kind)


def test_a_value_in_xml_that_does_not_fit_its_type_is_refused(file):
    beat = heartbeat(JSON_XML.replace("12345678901234567890", "many"))
    with pytest.raises(GraphError, match=r"heartbeat 1, payload: a value does not fit its type: .*'many'"):
        heartbeats_in(file(beat))


def test_doubled_executors_are_reported_with_their_places(file, caplog):
    body = "executors:\n" + "  - {source: s, type: t, function: a:b}\n" * 2
    executors = executors_in(file(body), file(body, "more.yaml"))
    assert len(executors) == 4
    assert "events t of s go to a:b (conf.yaml:2), and not to a:b (conf.yaml:3) after it" in caplog.text
    assert "a:b (more.yaml:3) after it" in caplog.text


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("executors:\n  - {source: s, type: t}\n", ["line 2", "'function' is missing"]),
        ("executors:\n  - source: s\n    type: t\n    function: a:b\n    timelimit: 3\n", ["line 5", "'timeLimit'?"]),
        ("executors:\n  - {source: s, type: t, function: a:b, where: here}\n", ["must be one of driver, executors"]),
        ("executors:\n  - {source: [], type: 'a b', function: a}\n", ["3 mistakes", "not be empty", "without"]),
        ("heartbeats:\n  - {id: x, typ: t}\n", ["unknown key; did you mean 'type'?"]),
        ("settings:\n  pendingTimeout: soon\n", ["line 2", "a duration such as"]),
        ("settings:\n  maxUris: 0\n", ["settings.maxUris: must be 1 or more, not 0"]),
        ("executers: []\n", ["unknown key; did you mean 'executors'?"]),
        ("- a\n", ["the file must be a mapping with the keys executors, heartbeats, settings"]),
        ("executors: [\n", ["line"]),
        ("<q><executor><source>s</source><type>t</type><module>/a/b.sjs</module></executor></q>", ["/a/b.sjs"]),
        (
            "<executor><source>s</source><type>t</type><module>a:b</module><database>d</database></executor>",
            ["line 1, executor 1, database: an executor in Python opens its databases itself: leave 'd' out"],
        ),
        ("<a/>", ["neither an executor nor a heartbeat-config"]),
        ("<a>\n<b></a>", ["line 2: not valid XML: mismatched tag"]),
        ("<!DOCTYPE a [<!ENTITY x 'y'>]>\n<a>&x;</a>", ["not valid XML: EntitiesForbidden"]),
    ],
)  # fmt: skip
def test_mistakes_of_a_file_are_reported_by_line(file, text, mistakes):
    with pytest.raises(GraphError) as error:
        declared_in(file(text))
    assert "conf.yaml has " in str(error.value)
    for one in mistakes:
        assert one in str(error.value)


def test_settings_stand_in_one_file(file):
    body = "settings: {maxUris: 3}\n"
    with pytest.raises(GraphError, match="has settings, too: keep them in one file"):
        declared_in(file(body), file(body, "more.yaml"))


# --- hub-queue: heartbeat/load --------------------------------------------------------------------


def test_heartbeat_load(file):
    beats = heartbeats_in(CONF / "heartbeats.yaml")
    numbers = {id: len(find_heartbeats(beats, id)) for id in ("OneMinute", "FiveMinute", "FifteenMinute")}
    assert numbers == {"OneMinute": 1, "FiveMinute": 2, "FifteenMinute": 3}
    with pytest.raises(OptionError, match=r"no heartbeat 'TenMinute'; did you mean"):
        find_heartbeats(beats, "TenMinute")


def test_what_ships_is_sound(caplog):
    with caplog.at_level(logging.WARNING):
        declared_in(CONF / "executors.yaml", CONF / "heartbeats.yaml")
        Executors(executors_in(CONF / "executors.yaml")).check()
    assert not caplog.records
