"""Documents of Redis: whole columns and single rows make and read the same."""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_queue.messages import columns
from spark_queue.messages.message import messages
from spark_queue.messages.payload import decode
from spark_queue.messages.schema import PUSHES
from spark_queue.stores.redis import documents
from spark_queue.stores.redis.documents import as_records, pack_pieces, to_documents

ids = st.text(st.characters(exclude_characters="\0\x7f", exclude_categories=["Cs"]), min_size=1, max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some, max_size=3),
    max_leaves=5,
)
texts = st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: (text.encode(), "text"))
payloads = st.one_of(
    values.filter(lambda value: not isinstance(value, str)).map(lambda value: (json.dumps(value).encode(), "json")),
    texts,
    st.binary().map(lambda some: (some, "binary")),
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3).map(lambda one: (json.dumps(one).encode(), "json"))
headers = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)


@pytest.fixture(params=["one by one", "by columns"], autouse=True, scope="module")
def few(request):
    """Whether these few rows are written one by one, or as many are."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by columns":
            patch.setattr(documents, "SMALL_BATCH", 0)
            patch.setattr(columns, "SMALL_BATCH", 0)
        yield


@st.composite
def batches(draw):
    """Rows of all kinds, or rows that are alike."""
    alike = draw(st.booleans())
    kind = draw(st.sampled_from([objects, texts])) if alike else payloads
    rows = draw(st.lists(kind, min_size=1, max_size=8))
    n = len(rows)
    some = ids if draw(st.booleans()) else st.integers(0, 99).map(lambda i: f"{i:024x}")
    named = draw(st.lists(some, min_size=n, max_size=n, unique=True))
    told = [{}] * n if alike else draw(st.lists(headers, min_size=n, max_size=n))
    tries = [draw(st.integers(0, 9))] * n if alike else draw(st.lists(st.integers(0, 99), min_size=n, max_size=n))
    columns = {
        "id": named,
        "payload": [payload for payload, _ in rows],
        "payload_kind": [kind for _, kind in rows],
        "headers": [list(one.items()) for one in told],
        "tries": tries,
    }
    dues = draw(st.lists(st.integers(0, 10**13), min_size=n, max_size=n))
    moments = st.none() | st.integers(10**12, 10**13 - 1) | st.just(1_700_000_000_000)
    pushed = draw(st.lists(moments, min_size=n, max_size=n) | moments.map(lambda one: [one] * n))
    return (
        pa.RecordBatch.from_pylist(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], PUSHES
        ),
        dues,
        pushed,
    )


def unpacked(piece):
    """The strings of a list in MessagePack."""
    assert piece[:1] == b"\xdd"
    (n,) = struct.unpack(">I", piece[1:5])
    found, at = [], 5
    for _ in range(n):
        assert piece[at : at + 1] == b"\xdb"
        (size,) = struct.unpack(">I", piece[at + 1 : at + 5])
        found.append(piece[at + 5 : at + 5 + size])
        at += 5 + size
    assert at == len(piece)
    return found


@given(batches(), st.integers(1, 5))
def test_pieces_hold_each_row_once(batch_and_moments, most):
    batch, dues, pushed = batch_and_moments
    rows = []
    for count, piece in pack_pieces("q", batch, dues, pushed, most):
        told, *strings = unpacked(piece)
        n = len(strings) // 4
        assert int(told) == count == n <= most
        moments, named = strings[0 : 2 * n : 2], strings[1 : 2 * n : 2]
        assert strings[2 * n :: 2] == named
        rows += zip(named, (int(float(one)) for one in moments), strings[2 * n + 1 :: 2], strict=True)
    assert [id.decode() for id, _, _ in rows] == batch.column("id").to_pylist()
    assert [due for _, due, _ in rows] == dues
    for (id, due, text), tries, moment in zip(rows, batch.column("tries").to_pylist(), pushed, strict=True):
        one = json.loads(text)
        assert (one["_id"], one["mature"], one["tries"]) == (id.decode(), due, tries)
        assert one.get("pushed") == moment


@given(batches(), st.booleans())
def test_what_was_written_is_read_as_it_was(batch_and_moments, other_dues):
    batch, dues, pushed = batch_and_moments
    made = list(to_documents("q", batch, dues, pushed))
    if other_dues:  # as of messages that were given back and are due at another moment: no longer alike
        dues = [due + 1 for due in dues]
    rows = list(zip(dues, (id.encode() for id in batch.column("id").to_pylist()), strict=True))
    found = as_records("q", rows, made).batch
    found.validate(full=True)
    assert found.column("id").to_pylist() == batch.column("id").to_pylist()
    assert found.column("payload_kind").to_pylist() == batch.column("payload_kind").to_pylist()
    assert found.column("tries").to_pylist() == batch.column("tries").to_pylist()
    assert [one and round(one.timestamp() * 1000) for one in found.column("pushed").to_pylist()] == pushed
    assert [dict(one) for one in found.column("headers").to_pylist()] == [
        dict(one) for one in batch.column("headers").to_pylist()
    ]
    columns = (batch.column(name).to_pylist() for name in ("payload", "payload_kind"))
    for one, payload, kind in zip(messages(found), *columns, strict=True):
        assert one.payload == decode(payload, kind)


def test_documents_that_are_alike_are_read_by_whole_columns(monkeypatch):
    monkeypatch.setattr(documents, "SMALL_BATCH", 0)
    monkeypatch.setattr(columns, "SMALL_BATCH", 0)
    batch = pa.RecordBatch.from_pylist(
        [
            {"id": f"{i:024x}", "payload": b'{"n":1}', "payload_kind": "json", "headers": [], "tries": 0}
            for i in range(9)
        ],
        PUSHES,
    )
    rows = [(17, id.encode()) for id in batch.column("id").to_pylist()]
    monkeypatch.setattr(documents, "_cut_document", None)
    for pushed in ([None] * 9, [1_700_000_000_000] * 9, [1_700_000_000_000 + row // 2 for row in range(9)]):
        parts = [to_documents("q", batch.slice(row, 1), [17], pushed[row : row + 1])[0] for row in range(9)]
        found = as_records("q", rows, parts).batch
        assert found.column("payload").to_pylist() == [b'{"n":1}'] * 9
        assert [one and round(one.timestamp() * 1000) for one in found.column("pushed").to_pylist()] == pushed
