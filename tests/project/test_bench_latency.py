"""The benchmark of latency, as far as it takes no servers and no Spark."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
latency = importlib.import_module("latency")


def test_a_waiting_client_takes_every_message_after_the_push_that_brought_it(monkeypatch, tmp_path):
    monkeypatch.setattr(latency, "TO_CLIENT", (0.01, 0.02))  # a benchmark's target
    found = latency.to_client(f"sqlite:///{tmp_path}/queues.db", "q", 3)
    assert [len(taken) for taken in found.values()] == [3, 3, 3], "those before are not counted"
    assert all(0 < ms < latency.TIMEOUT_S * 1000 for what in ("push", "client") for ms in found[what])


def test_the_bare_driver_inserts_and_claims_each_message_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(latency, "TO_CLIENT", (0.0, 0.001))  # a benchmark's target
    taken = latency.by_driver("sqlite", "", tmp_path, 3)
    assert len(taken) == 3 and all(0 < ms < latency.TIMEOUT_S * 1000 for ms in taken)
    assert not list(tmp_path.iterdir()), "what it made is removed"


def test_the_source_that_has_rows_at_once_gives_each_line_once(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b'{"sent":1}\n')
    source = latency.Lines({"file": str(file)})
    reader = source.streamReader(source.schema())
    first = reader.latestOffset()
    file.write_bytes(b'{"sent":1}\n{"sent":2}\n{"sent":3}\n')
    offsets = [reader.initialOffset(), first, reader.latestOffset()]
    given = [
        [text for page in reader.read(part) for text in page.column("payload").to_pylist()]
        for start, end in itertools.pairwise(offsets)
        for part in reader.partitions(start, end)
    ]
    assert given == [['{"sent":1}'], ['{"sent":2}', '{"sent":3}']]


def test_spark_is_compared_within_a_round_and_times_are_those_of_all_rounds():
    def round_of(weather, times):
        return {
            "push": [1.0],
            "after": [2.0],
            "client": [3.0],
            "driver": [0.5],
            "source": [weather] * 3,
            "queue": [weather * times] * 3,
        }

    reported = latency.summary([round_of(100.0, 1.2), round_of(1000.0, 1.1), round_of(200.0, 2.0)])
    assert reported["times"] == pytest.approx(1.2)
    assert reported["source"] == {"median": 200.0, "p99": 1000.0}
    head, row = latency.table({"redis": reported})
    assert len(head) == len(row) and row == (
        "redis",
        "1.0, 1.0",
        "2.0, 2.0",
        "3.0, 3.0",
        "0.5, 0.5",
        "400.0, 1100.0",
        "200.0, 1000.0",
        "1.20",
    )
