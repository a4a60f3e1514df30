"""The peers of the benchmark, as far as it takes neither servers nor the peers."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
peers = importlib.import_module("peers")
job = importlib.import_module("peers.job")
cli = importlib.import_module("peers.__main__")


def tally(first, last, *times):
    return job.HEAD.pack(first, last) + bytes(times)


@pytest.mark.parametrize("number", [0, 7, 12_345, 999_999])
def test_a_document_has_100_bytes(number):
    assert len(json.dumps(job.payload(number), separators=(",", ":"))) == 100


def test_documents_come_in_chunks_and_none_is_missing(monkeypatch):
    monkeypatch.setattr(job, "MESSAGES", 25)
    chunks = list(job.payloads(10))
    assert [len(one) for one in chunks] == [10, 10, 5]
    assert [one["n"] for chunk in chunks for one in chunk] == list(range(25))


def test_a_job_is_noted_in_the_tally_of_its_process(monkeypatch, tmp_path):
    monkeypatch.setattr(job, "MESSAGES", 3)
    monkeypatch.setattr(job, "TALLIES", str(tmp_path))
    monkeypatch.setattr(job, "_tally", None)
    for number in (2, "0", 2):
        job.done({"n": number})
    (noted,) = (one.read_bytes() for one in tmp_path.iterdir())
    first, last = job.HEAD.unpack_from(noted)
    assert 0 < first <= last
    assert list(noted[job.HEAD.size :]) == [1, 0, 2]
    job._tally.close()


def test_a_drain_lasts_from_the_first_to_the_last_job_of_all_processes():
    assert peers.seconds([tally(100, 103, 1, 0, 1), tally(101, 105, 0, 1, 0)]) == 5


@pytest.mark.parametrize(
    ("tallies", "told"),
    [
        ([tally(1, 2, 1, 0, 0)], "2 jobs ran 0 times"),
        ([tally(1, 2, 1, 1, 2)], "1 jobs ran 2 times"),
        ([tally(1, 2, 1, 1, 0), tally(1, 2, 1, 0, 0)], "1 jobs ran 0 times, 1 jobs ran 2 times"),
    ],
)
def test_a_drain_counts_only_if_each_job_ran_exactly_once(tallies, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        peers.seconds(tallies)


@pytest.mark.parametrize("peer", peers.PEERS.values(), ids=list(peers.PEERS))
def test_what_a_run_looks_for_at_its_end_is_removed_too(peer):
    assert peer.server == "mongodb" or peer.jobs
    assert all(any(fnmatchcase(one, pattern) for pattern in peer.keys) for one in peer.jobs)


@pytest.mark.parametrize("peer", peers.PEERS.values(), ids=list(peers.PEERS))
def test_programs_of_our_own_exist(peer):
    ours = [one for one in (*peer.push, *peer.work) if one.startswith("peers.") or one.endswith(".js")]
    assert all((peers.HERE / f"{re.split('[.:]', one)[1]}.py").exists() or Path(one).exists() for one in ours)


def test_peers_are_named_between_commas():
    assert cli.names("rq,huey") == ["rq", "huey"]
    with pytest.raises(argparse.ArgumentTypeError, match="no peer 'ruq'; there are "):
        cli.names("rq,ruq")


def test_what_is_told_of_a_peer_are_medians():
    rounds = [
        peers.Measured(
            push_seconds=push,
            drain_seconds=2 * push,
            settings_text="fast",
            version="1.0",
            cpu_client_seconds=push,
            cpu_server_seconds=1.0,
            peak_rss_bytes=1024,
        )
        for push in (1.0, 4.0, 2.0)
    ]
    told = cli.summary(rounds, 100)
    assert (told["pushed per second"], told["drained per second"], told["cpu_client_seconds"]) == (50, 25, 2.0)
