"""What `make test` runs of the real keuss and rfq: each layout of theirs, in both directions."""

from __future__ import annotations

import pytest

from spark_queue.stores.conformance.waiting import wait_until
from tests.interop.keuss import PAYLOADS, documents, everything, same
from tests.interop.rfq import sharing

pytestmark = pytest.mark.interop


def test_every_payload_of_keuss_is_read(shared):
    keuss, ours = shared.keuss(), shared.ours()
    pushed = {keuss.push(payload): payload for payload in PAYLOADS}
    taken = ours.reserve(100)
    if "id" not in shared.can:  # it has no other order than that of the pushes
        pushed = {message.id: payload for message, payload in zip(taken, PAYLOADS, strict=True)}
    got = {message.id: message.payload for message in taken}
    assert got.keys() == pushed.keys()
    for id, payload in pushed.items():
        assert same(got[id], payload), f"{payload!r} came as {got[id]!r}"


def test_every_payload_of_ours_is_read_by_keuss(shared):
    keuss, ours = shared.keuss(), shared.ours()
    pushed = dict(zip(ours.push_many(PAYLOADS), PAYLOADS, strict=True))
    for message in (keuss.pop() for _ in PAYLOADS):
        payload = pushed.pop(message.id)
        assert same(message.payload, payload), f"{payload!r} came as {message.payload!r}"
        assert (message.hdrs, message.tries) == ({}, 0)
    assert pushed == {}
    assert keuss.total_size() == 0


def test_every_payload_of_keuss_is_read_from_buckets(buckets):
    keuss, ours = buckets.keuss(), buckets.ours()
    for payload in PAYLOADS:
        keuss.push(payload)
    got = everything(ours, len(PAYLOADS))
    assert all(same(one.payload, payload) for one, payload in zip(got, PAYLOADS, strict=True))
    assert ours.commit(*got) == len(PAYLOADS)
    assert documents(buckets) == []


def test_every_payload_of_ours_is_read_by_keuss_from_buckets(buckets):
    buckets.ours().push_many(PAYLOADS)
    keuss = buckets.keuss()
    got = [keuss.pop() for _ in PAYLOADS]
    for one, payload in zip(got, PAYLOADS, strict=True):
        if payload in (0, "") and not isinstance(payload, bytes):  # keuss gives the whole entry, of its own, too
            assert (one.payload["__p"], one.hdrs) == (payload, None)
        else:
            assert same(one.payload, payload)
            assert one.hdrs == {}
    wait_until(lambda: documents(buckets) == [])


@pytest.mark.parametrize("language", ["python", "js"])
def test_rfq_and_we_read_what_the_other_wrote_first_in_first_out(redis_url, language):
    with sharing(redis_url) as topic:
        rfq, ours = topic.rfq(language), topic.ours()
        sent = [rfq.publish(topic.name, {"n": str(n)}) for n in range(3)] + ours.push_many(
            [{"n": str(n)} for n in (3, 4)]
        )
        assert topic.store.listq(topic.name, "backlog") == sent[::-1] == topic.backlog(), "newest first"
        first = rfq.consume(topic.name)
        (second, third) = ours.reserve(2)
        rest = [rfq.consume(topic.name), rfq.consume(topic.name)]
        assert [first.id, second.id, third.id, *(one.id for one in rest)] == sent
        assert [one.message["n"] for one in (first, *rest)] == ["0", "3", "4"]
        assert [one.payload["n"] for one in (second, third)] == ["1", "2"]
