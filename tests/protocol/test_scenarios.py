"""The code takes the steps of the model on real stores, and is in the same state after each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_queue import open_store
from spark_queue.options.masking import scheme_of
from spark_queue.spark.read import deadly_batch
from spark_queue.spark.read.batches import Batches
from spark_queue.stores.base import Store
from spark_queue.stores.services.ownership import Ownership
from spark_queue.stores.services.publishing import Publisher
from tests import registered
from tests.protocol.process import points
from tests.protocol.real import follow
from tests.protocol.scenarios import ALL_WORLDS, FEW, FILE, known, made, stored, written
from tests.protocol.state import breach
from tests.protocol.there import Differs

#: Tests of `make test-all`: each follows every n-th scenario.
GROUPS = 10


@pytest.fixture
def store(any_url: str) -> Iterator[Store]:
    with open_store(any_url) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """The second database of a sink."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


@pytest.fixture
def name(store: Store) -> Iterator[str]:
    """The name of a queue that is dropped, with the one that a query writes to."""
    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    for queue in (name, f"{name}.two", f"{name}.out"):
        store.drop(queue)


def follow_all(store: Store, other: Store, name: str, chosen: slice) -> None:
    """Follow scenarios to the end: there nothing is lost or doubled."""
    with points():
        scenarios = stored()
        for one, length in list(zip(scenarios, known(scenarios), strict=True))[chosen]:
            if ALL_WORLDS[one.world].cut and registered.embedded(scheme_of(store.url)):
                continue  # it claims the messages of all partitions in one transaction
            state = follow(store, name, one, ALL_WORLDS[one.world], length, other)
            assert not breach(state, ALL_WORLDS[one.world])


@pytest.mark.every_store
def test_the_code_follows_the_model(store, other, name):
    follow_all(store, other, name, slice(FEW))


@pytest.fixture(autouse=True)
def deaths_are_not_counted(monkeypatch):
    """The model lacks the error after two deaths in one batch, which the next start repeats."""
    monkeypatch.setattr(deadly_batch, "MAX_DEATHS", 1_000_000)  # the model counts deaths itself


@pytest.mark.full
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_code_follows_the_model_everywhere(store, other, name, group):
    follow_all(store, other, name, slice(FEW + group, None, GROUPS))


@pytest.mark.full
def test_the_stored_scenarios_are_those_of_the_model_and_have_all_pairs():
    pairs, scenarios = made()
    assert set().union(*(one.pairs for one in stored())) == pairs
    assert written(scenarios) == FILE.read_text(), "type: python -m tests.protocol.scenarios"


def test_there_are_enough_scenarios():
    found = stored()
    assert len(set(found)) == len(found) >= 200
    kinds = set().union(*(one.kinds for one in found))
    assert set().union(*(one.kinds for one in found[:FEW])) == kinds, "those of make test have every kind of step"


def nothing(*_: object, **__: object) -> int:
    return 0


@pytest.mark.parametrize(
    ("holder", "method", "said"),
    [
        (Ownership, "start", "note of epoch"),
        (Ownership, "check_newest", "is fenced: it asks"),
        (Batches, "clean_up", "messages: "),
        (Store, "commit", "messages: |it ends: FencedError"),
        (Store, "renew", "messages: "),
        (Store, "publish", "visible: "),
        (Publisher, "_take", "ledger 1: "),
        (Ownership, "note_reserved", "it ends: CheckpointError"),
        (Store, "unstage", "ledger 0: "),
    ],
    ids=lambda one: one if isinstance(one, str) and one.isidentifier() else "",
)
def test_code_that_leaves_a_step_out_differs(sqlite_url, other, holder, method, said, monkeypatch):
    """What is left out is noticed, at the step or where it matters."""
    monkeypatch.setattr(holder, method, nothing)
    with open_store(sqlite_url) as store, pytest.raises(Differs, match=said):
        follow_all(store, other, "planted", slice(FEW))
