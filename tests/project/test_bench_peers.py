"""The peers of the benchmark, as far as it takes neither servers nor the peers."""

from __future__ import annotations

import argparse
import dataclasses
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
Measured = importlib.import_module("measured").Measured


def tally(first, last, *times):
    return job.HEAD.pack(first, last) + bytes(times)


@pytest.mark.parametrize("number", [0, 7, 12_345, 999_999])
def test_a_document_has_100_bytes(number):
    assert len(json.dumps(job.payload(number), separators=(",", ":"))) == 100


def test_documents_come_in_chunks_and_none_is_missing(monkeypatch):
    monkeypatch.setattr(job, "MESSAGES", 25)  # a short job
    chunks = list(job.payloads(10))
    assert [len(one) for one in chunks] == [10, 10, 5]
    assert [one["n"] for chunk in chunks for one in chunk] == list(range(25))


def test_a_job_is_noted_in_the_tally_of_its_process(monkeypatch, tmp_path):
    monkeypatch.setattr(job, "MESSAGES", 3)  # a short job
    monkeypatch.setattr(job, "TALLIES", str(tmp_path))  # a folder of the test
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
    ("tallies", "expected"),
    [
        ([tally(1, 2, 1, 0, 0)], "2 jobs ran 0 times"),
        ([tally(1, 2, 1, 1, 2)], "1 jobs ran 2 times"),
        ([tally(1, 2, 1, 1, 0), tally(1, 2, 1, 0, 0)], "1 jobs ran 0 times, 1 jobs ran 2 times"),
    ],
)
def test_a_drain_counts_only_if_each_job_ran_exactly_once(tallies, expected):
    with pytest.raises(ValueError, match=f"^{expected}$"):
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
    assert peers.names("rq,huey") == ["rq", "huey"]
    with pytest.raises(argparse.ArgumentTypeError, match="no peer 'ruq'; there are "):
        peers.names("rq,ruq")


def test_slow_peers_do_fewer_jobs():
    assert peers.jobs("rfq", 20_000) == 20_000
    assert peers.jobs("keuss-mongo", 20_000) == peers.PEERS["keuss-mongo"].max_jobs < 20_000
    assert peers.jobs("keuss-mongo", 300) == 300


def test_a_peer_that_is_not_there_names_the_make_target(monkeypatch, tmp_path):
    urls = {"redis": "redis://127.0.0.1"}
    absent = dataclasses.replace(peers.PEERS["rfq"], installed=tmp_path / "rfq")
    monkeypatch.setitem(peers.PEERS, "rfq", absent)
    with pytest.raises(peers.PeerError, match="rfq is not installed: type 'make peers'"):
        peers.ready("rfq", urls)
    present = dataclasses.replace(absent, installed=tmp_path, push=(sys.executable,))
    monkeypatch.setitem(peers.PEERS, "rfq", present)
    peers.ready("rfq", urls)
    with pytest.raises(peers.PeerError, match="rfq: no redis server: type 'make services'"):
        peers.ready("rfq", {})


def test_a_peer_is_reported_by_medians():
    rounds = [peers.Run(push=measured(push), drain=measured(2 * push), version="1.0") for push in (1.0, 4.0, 2.0)]
    push, drain = cli.summary(rounds).split("; ")
    assert push.startswith("push 50/s, CPU 20,000 s and of the server 10,000 s per million")
    assert drain.startswith("drain 25/s, CPU 40,000 s ")


def measured(seconds):
    return Measured.of(100, seconds=seconds, client=seconds, server=1.0, peak=1024)
