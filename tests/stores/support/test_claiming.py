"""What a claim shares among its partitions, without a database."""

from __future__ import annotations

import pytest

from spark_queue.stores.support.claiming import ClaimRequest, Shares, share_evenly
from spark_queue.stores.types import Claim


def claim_of(rows, **more):
    return ClaimRequest("c/1", rows, **{"partitions": 4, "smallest": 10, **more})


def sized(*sizes):
    return [(number, f"id-{number}", size) for number, size in enumerate(sizes)]


def bucket(rows, size):
    return f"\x7ffirst\x7f{rows}\x7f0123456789abcdef+{size}"


@pytest.mark.parametrize(
    ("rows", "least", "expected"),
    [
        (0, 1, []),
        (1, 1, [1]),
        (10, 1, [10]),
        (11, 1, [6, 5]),
        (7, 3, [3, 2, 2]),
        (2, 4, [1, 1]),
        (99, 1, [25, 25, 25, 24]),
    ],
)
def test_partitions_have_even_sizes(rows, least, expected):
    assert share_evenly(rows, 4, least, 10) == expected


def test_partitions_take_the_records_in_order():
    shares = Shares(claim_of(30), ready=100)
    assert shares.cut(sized(*[1] * 100)) == {0: [*range(10)], 1: [*range(10, 20)], 2: [*range(20, 30)]}
    assert shares.is_complete
    assert shares.claim() == Claim([10, 10, 10])


def test_what_few_records_leave_is_filled_by_the_next():
    shares = Shares(claim_of(20), ready=20)
    assert shares.cut(sized(1, 1, 1)) == {0: [0, 1, 2]}
    assert not shares.is_complete
    assert {part: len(keys) for part, keys in shares.cut(sized(*[1] * 17)).items()} == {0: 7, 1: 10}
    assert shares.claim() == Claim([10, 10])


def test_large_messages_make_as_many_partitions_as_are_allowed():
    shares = Shares(claim_of(9, bytes=400), ready=9)
    assert shares.cut(sized(*[90] * 9)) == {0: [0], 1: [1], 2: [2], 3: [3]}
    assert shares.claim() == Claim([1, 1, 1, 1], bytes=360, full=True)


def test_the_first_record_may_be_larger_than_its_share_and_no_other():
    shares = Shares(claim_of(8, bytes=100), ready=2)
    assert shares.cut(sized(900, 900)) == {0: [0]}
    assert shares.claim() == Claim([1], bytes=900, full=True)


@pytest.mark.parametrize("limit", [{"rows": 5}, {"rows": 50, "bytes": 100}])
def test_a_first_bucket_that_is_too_large_is_to_be_split(limit):
    id = bucket(9, 1_000)
    shares = Shares(claim_of(**limit), ready=9)
    assert shares.cut([(0, id, 10), (1, "id", 1)]) == {}
    assert shares.is_complete
    assert shares.claim().oversized_bucket == id
    later = Shares(claim_of(**limit), ready=9)
    assert later.cut([(0, "id", 1), (1, id, 10)]) == {0: [0]}
    assert later.claim().oversized_bucket is None, "the claim has a message"


def test_what_others_took_first_is_filled_again():
    shares = Shares(claim_of(20, bytes=1_000), ready=20)
    shares.cut(sized(*[10] * 20))
    shares.correct([4, 0])
    assert not shares.is_complete
    taken = {part: len(keys) for part, keys in shares.cut(sized(*[10] * 20)).items()}
    assert taken == {0: 6, 1: 10}
    assert shares.claim() == Claim([10, 10], bytes=260), "the bytes of those that were lost still count"


@pytest.mark.parametrize(
    ("more", "held", "expected"),
    [
        ({}, {}, []),
        ({}, {"c/1/0": 3, "c/1/2": 4}, [3, 0, 4]),
        ({}, {f"c/1/{part}": 1 for part in range(9)}, [1] * 9),
        ({}, {"c/1/unseen": 2, "c/10/1": 5}, []),
        ({"partitions": 1}, {"c/1/0": 3, "c/1/1": 4, "c/1/unseen": 5}, [3]),
        ({"partitions": 1, "unseen": True}, {"c/1/0": 3, "c/1/unseen": 5}, [5]),
    ],
)
def test_what_tags_hold_is_returned_by_partition(more, held, expected):
    assert claim_of(9, **more).held_rows(held) == expected
