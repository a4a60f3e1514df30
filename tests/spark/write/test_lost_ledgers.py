"""One of several databases went back: the error names it, and its hint leads on."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections import Counter
from pathlib import Path

import pytest

from spark_queue import CheckpointError, open_store
from spark_queue.admin.sinks import set_ledger
from spark_queue.messages.message import pushes
from spark_queue.stores.services.ledger import LEDGER_PREFIX, ledger_of, stage_of
from tests.spark.drive import Write, attempt, payloads

STREAM, FOREACH_BATCH = "stream", "foreachBatch"


class Sink:
    """A query that writes to two files, each row to both; each file can be put back to a copy."""

    def __init__(self, folder: Path, kind):
        self.paths = {name: folder / f"{name}.db" for name in ("here", "there")}
        self.urls = {name: f"sqlite:///{path}" for name, path in self.paths.items()}
        self.out, self.name, self.kind = "out", str(uuid.uuid4()), kind
        self.sink = self.name if kind == STREAM else f"app:{self.name}"

    def driver(self, batch):
        options = {"urls": json.dumps(self.urls), "queue": self.out}
        if self.kind == STREAM:
            return Write(rows_of(batch).schema, query=self.name, batch=batch, **options)
        version = {"txnAppId": "app", "txnVersion": str(batch)}
        return Write(rows_of(batch).schema, within=self.name, batch=batch, **options, **version)

    def run(self, batch):
        self.driver(batch).run(rows_of(batch))

    def copy(self, name):
        """Copy a file; its clients are closed, so it is whole."""
        shutil.copy(self.paths[name], f"{self.paths[name]}.copy")

    def put_back(self, name):
        for end in ("-wal", "-shm"):
            Path(f"{self.paths[name]}{end}").unlink(missing_ok=True)
        shutil.copy(f"{self.paths[name]}.copy", self.paths[name])

    def numbers(self, name):
        return Counter(payloads(self.urls[name], self.out))

    def coordinator(self):
        """The names of the databases, that of the coordinator first."""
        ledgers = {name: self.ledger(name) for name in self.urls}
        first = next(iter(ledgers.values())).shares[0].id
        return sorted(ledgers, key=lambda name: ledgers[name].id != first)

    def ledger(self, name):
        with open_store(self.urls[name]) as store:
            return ledger_of(store, self.sink)

    def state(self):
        """What is in both databases."""
        found = []
        for name, url in self.urls.items():
            with open_store(url) as store:
                found.append((self.numbers(name), store.staged(), store.notes(LEDGER_PREFIX)))
        return found

    def follow(self, error):
        """Do what an error says."""
        said = re.search(r"spark-queue ledger set URL (\S+) (\d+), with the URL of '(\w+)'", str(error))
        assert said is not None, error
        set_ledger(self.urls[said[3]], said[1], int(said[2]))
        return said[3]


def rows_of(batch):
    """The rows of a batch, one for each database and number."""
    return attempt([batch * 10, batch * 10, batch * 10 + 1, batch * 10 + 1], ns=["here", "there"] * 2)


@pytest.fixture
def query(request, tmp_path):
    return Sink(tmp_path, request.param)


def numbers_of_batches(*batches):
    return Counter(n for batch in batches for n in (batch * 10, batch * 10 + 1))


@pytest.mark.parametrize("following", ["again", "next"])
@pytest.mark.parametrize("role", [0, 1], ids=["coordinator", "member"])
@pytest.mark.parametrize(("last", "copied"), [(0, None), (1, None), (1, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("query", [STREAM, pytest.param(FOREACH_BATCH, marks=pytest.mark.full)], indirect=True)
def test_a_database_that_was_put_back_is_named_and_the_hint_leads_on(query, last, copied, role, following):
    """The last batch comes again, or the next one comes. `copied`: the batch after which the copy was made."""
    for name, url in query.urls.items():
        if copied is None:
            open_store(url).close()
            with open_store(url) as store:
                store.set_note("other", {}, 0)
            query.copy(name)
    for batch in range(last + 1):
        query.run(batch)
        if batch == copied:
            for name in query.urls:
                query.copy(name)
    lost, other = query.coordinator()[role], query.coordinator()[1 - role]
    query.put_back(lost)
    before, batch = query.state(), last + (following == "next")
    with pytest.raises(CheckpointError) as raised:
        query.run(batch)
    assert query.state() == before, "nothing was changed"
    assert query.follow(raised.value) == lost
    query.run(batch)
    query.run(last + 1)  # again, or the next one
    query.run(last + 2)
    kept = [] if copied is None else range(copied + 1)
    assert query.numbers(lost) == numbers_of_batches(*kept, last + 1, last + 2), "its lost rows are not repeated"
    assert query.numbers(other) == numbers_of_batches(*range(last + 3))
    assert not any(staged for _, staged, _ in query.state())


@pytest.mark.parametrize("following", [1, 2])
@pytest.mark.parametrize("role", [0, 1], ids=["coordinator", "member"])
@pytest.mark.parametrize("left", ["all", "some"])
@pytest.mark.parametrize("query", [STREAM, pytest.param(FOREACH_BATCH, marks=pytest.mark.full)], indirect=True)
def test_a_failover_that_took_back_a_publish_loses_none_of_the_rows_that_are_staged(query, left, role, following):
    """The rows are staged, as before the decision: all of them, or some."""
    query.run(0)
    names = query.coordinator()
    for name in names:
        query.copy(name)
    query.run(1)
    stage, lost, other = query.ledger(names[0]).stages[0], names[role], names[1 - role]
    query.put_back(lost)
    rows = [10, 11] if left == "all" else [11]
    with open_store(query.urls[lost]) as store:
        assert stage.startswith(stage_of(query.sink, 1, ""))
        store.stage(query.out, stage, pushes(rows))
    if left == "some":
        with pytest.raises(
            CheckpointError, match=rf"with 2 rows for '{lost}', but 1 of them is staged there"
        ) as raised:
            query.run(following)
        assert query.follow(raised.value) == lost
    query.run(following)
    query.run(2)
    query.run(3)
    assert query.numbers(lost) == numbers_of_batches(0, 2, 3) + Counter(rows)
    assert query.numbers(other) == numbers_of_batches(*range(4))
    assert not any(staged for _, staged, _ in query.state())
