"""Exactly-once writes to several databases."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest

from spark_queue import (
    CheckpointError,
    MessageError,
    OptionError,
    SchemaError,
    open_store,
)
from spark_queue.stores.base import Store
from spark_queue.stores.services.ledger import set_ledger
from tests.spark.drive import (
    Write,
    attempt,
    forget_ledger,
    left_behind,
    payloads,
    rows,
    save,
)
from tests.spark.write.drivers import Killed

pytestmark = pytest.mark.every_store


@pytest.fixture
def urls(any_url, tmp_path):
    """Two databases, by name."""
    return {"here": any_url, "there": f"sqlite:///{tmp_path}/there.db"}


def at(values, *names):
    """These values in several databases, each in its turn."""
    values = list(values)
    return attempt(values, ns=[names[n % len(names)] for n in range(len(values))])


def test_a_write_reaches_several_databases(urls, name, out):
    parts = [at(range(start, start + 1_500), "there", "here", "here") for start in (0, 1_500, 3_000)]
    save(*parts, urls=json.dumps(urls), queue=out)
    assert sorted(payloads(urls["there"], out)) == list(range(0, 4_500, 3))
    assert sorted(payloads(urls["here"], out)) == [n for n in range(4_500) if n % 3]
    for url in urls.values():
        assert left_behind(url, name) == []


def test_a_database_that_joins_takes_part_from_the_next_version_on(urls, name, out, sink):
    here = {"url": urls["here"], "queue": out, "txnAppId": sink, "txnVersion": "5"}
    save(attempt(range(10)), **here)
    for version in ("5", "5", "6"):
        options = {"urls": json.dumps(urls), "queue": out, "txnAppId": sink, "txnVersion": version}
        save(at(range(10), "there"), at(range(10), "here"), **options)
    assert Counter(payloads(urls["here"], out)) == Counter(2 * list(range(10)))
    assert Counter(payloads(urls["there"], out)) == Counter(range(10))
    for url in urls.values():
        assert left_behind(url, name) == []


def test_a_driver_that_dies_between_two_databases_is_finished_by_the_next(urls, name, out, sink):
    parts = [at(range(10), "here", "there"), at(range(10, 20), "there", "here")]

    def driver():
        return Write(parts[0].schema, query=sink, urls=json.dumps(urls), queue=out)

    first = driver()
    written = [first.task([one], number) for number, one in enumerate(parts)]
    usual, decided = Store.publish, []

    def dies_at_the_second(store, stages):
        decided.append(store)
        if len(decided) == 2:
            raise Killed
        return usual(store, stages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "publish", dies_at_the_second)
        with pytest.raises(Killed):
            first.commit(*written)
    assert len(payloads(urls["here"], out)) == 10 and payloads(urls["there"], out) == []
    driver().run(*parts)
    assert sorted(payloads(urls["here"], out) + payloads(urls["there"], out)) == list(range(20))
    for url in urls.values():
        assert left_behind(url, name) == []


def either(streaming, urls, out, sink, batch, *parts):
    """Write to several databases, as a batch of a query or by a batch write."""
    options = {"urls": json.dumps(urls), "queue": out}
    Write(parts[0].schema, **options, **({"query": sink, "batch": batch} if streaming else {})).run(*parts)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_database_may_have_several_names(any_url, name, out, sink, streaming):
    """If one of them gets no row of a batch, the stages of the other do not count as abandoned."""
    urls = dict.fromkeys(("first", "second"), any_url)
    for batch, names in enumerate((["second"], ["first", "second"])):
        either(streaming, urls, out, sink, batch, at(range(9), *names))
    assert Counter(payloads(any_url, out)) == Counter(2 * list(range(9)))
    assert left_behind(any_url, name) == []


@pytest.mark.parametrize("streaming", [True, False])
def test_one_database_under_two_urls_is_refused_before_anything_is_visible(name, tmp_path, streaming):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    url, out = f"sqlite:///{tmp_path}/data/both.db", f"{name}.out"
    urls = {"first": url, "second": f"sqlite:///{tmp_path}/link/both.db"}
    with pytest.raises(OptionError, match="same database under two URLs"):
        either(streaming, urls, out, "sink", 0, at(range(9), "second"))
    assert payloads(url, out) == []
    assert left_behind(url, name) == []


def test_databases_may_join_a_stream_and_leave_it_manually(any_url, out, sink, tmp_path):
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "three")} | {"two": any_url}
    for number, names in enumerate((["one"], ["one", "two"], ["two"], ["one", "two", "three"])):
        some = {name: urls[name] for name in names}
        if names == ["two"]:
            way_on = rf"batch 1 was also written to 'one'.* ledger set URL {sink} 1 for each of the others"
            with pytest.raises(CheckpointError, match=way_on):
                either(True, some, out, sink, number, at([number], "two"))
            assert payloads(urls["two"], out) == [1]
            with open_store(urls["two"]) as store:
                set_ledger(store, sink, 1)
        either(True, some, out, sink, number, *(at([number], name) for name in names))
    assert {name: sorted(payloads(url, out)) for name, url in urls.items()} == {
        "one": [0, 1, 3], "two": [1, 2, 3], "three": [3],
    }  # fmt: skip


def test_a_ledger_that_is_lost_is_not_taken_for_a_database_that_joins(urls, out, sink):
    for batch in (0, 1):
        either(True, urls, out, sink, batch, at([batch], "here"))
    for lost in urls.values():
        with open_store(lost) as store:
            note = store.note(f"ledger/{sink}")
        forget_ledger(lost, sink)
        with pytest.raises(CheckpointError, match="it has no ledger"):
            either(True, urls, out, sink, 2, at([2], "here"))
        with open_store(lost) as store:
            assert note is not None and store.set_note(f"ledger/{sink}", note.value, 0)
    either(True, urls, out, sink, 2, at([2], "here"))
    assert sorted(payloads(urls["here"], out)) == [0, 1, 2]


ONE, NS = pa.record_batch({"payload": ["1"]}), pa.field("ns", pa.string())


@pytest.mark.parametrize(
    ("options", "batch", "error", "message"),
    [
        ({"urls": "[]"}, rows([1], ns="a"), OptionError, "option 'urls' is .hidden. but must be a JSON object"),
        ({"urls": '{"a": "sqlite:///x.db"}'}, ONE, SchemaError, "column 'ns' is missing"),
        (
            {"urls": '{"here": "sqlite:///x.db"}'},
            rows([1], ns="her"),
            MessageError,
            "has no database 'her'; did you mean 'here'",
        ),
        (
            {"urls": '{"here": "sqlite:///x.db"}'},
            ONE.append_column(NS, pa.array([None], pa.string())),
            MessageError,
            "its ns is NULL",
        ),
        ({"urls": '{"a": "sqlite:///x.db"}', "url": "sqlite:///y.db"}, ONE, OptionError, "exclude each other"),
        ({"url": "sqlite:///y.db"}, rows([1], ns="a"), SchemaError, "column 'ns' names one of several databases"),
    ],
)
def test_invalid_databases_are_refused(tmp_path, monkeypatch, options, batch, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        save(batch, **options, queue="out")
