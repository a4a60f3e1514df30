"""Messages as Redis keeps them: JSON documents in the form of keuss.

    {"_id":"…","payload":…,"tries":0,"hdrs":{…},"mature":ms,"pushed":ms}

`pushed`, when the message was pushed, is ours: documents of keuss, of rfq and of older versions
have none. If the payload is base64, `,"type":"buffer"` follows at the end.

A document in exactly this form is read by cutting out its payload, without parsing JSON. A document
that keuss has rewritten may have its fields in any order.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.messages.buckets import count_rows, rows_of
from spark_queue.messages.columns import build_json_messages, build_messages, header_dicts, with_history
from spark_queue.messages.ids import SMALL_BATCH
from spark_queue.messages.payload import text_or_bytes
from spark_queue.stores.base import PAGE_BYTES, rejected_rows_error
from spark_queue.stores.redis.json_fields import field_texts
from spark_queue.stores.redis.keys import DueId
from spark_queue.stores.redis.scores import score_text, scores_of
from spark_queue.stores.support import damaged
from spark_queue.stores.support.damaged import (
    MAX_QUOTED,
    READ_ERRORS,
    Records,
    Unreadable,
    first_readable,
    id_of,
    parse_mature,
    parse_pushed,
    parse_tries,
    read_each,
    require,
)

#: Bytes of documents in one call of a script, unless a single one is larger. The server does
#: nothing else for 5 to 10 ms per MB.
CALL_BYTES = 8 << 20

LARGEST_DOCUMENT = (512 << 20) - 4096  #: bytes: it must fit into one argument (`proto-max-bulk-len`)

HistoryFields = tuple[int, str | None, str]  #: when a message was processed (ms), by which consumer, and its outcome

#: The part of a document after the payload, as it was pushed.
DOCUMENT_TAIL = re.compile(
    rb',"tries":(\d+),"hdrs":(\{.*\}),"mature":(\d+)(?:,"pushed":(\d{1,15}))?(,"type":"buffer")?\}', re.DOTALL
)

#: No JSON value ends like this. If a cut does, it has several fields: keuss has rewritten the
#: document in its own order.
NOT_PAYLOAD_ENDINGS = (b":true", b":false", b',"type":"buffer"')

#: An entry of the history.
HISTORY_ENTRY = re.compile(
    rb'\{"processed":(\d+),"mature":(\d+)(?:,"consumer":"([^"]*)","outcome":"([^"]+)")?,"message":(.*)\}', re.DOTALL
)


def pack_pieces(
    queue: str, batch: pa.RecordBatch, dues: Sequence[int], pushed: Sequence[int | None], limit: int
) -> Iterator[tuple[int, bytes]]:
    """Yield a PUSHES batch in pieces for push.lua, each with its number of messages.

    `dues`, `pushed`: when each row is due, and was pushed (ms; `None` is not written). A piece has
    at most `limit` records. If it has more than one, it has at most CALL_BYTES of documents. Raises
    `MessageError` for a row whose document is too large for Redis.
    """
    documents = to_documents(queue, batch, dues, pushed)
    scores = scores_of(batch.column("id"), dues)
    if len(documents) <= min(limit, SMALL_BATCH) and sum(map(len, documents)) <= CALL_BYTES:
        names = [id.encode() for id in batch.column("id").to_pylist()]
        values = [b"%d" % sum(map(rows_of, batch.column("id").to_pylist()))]
        values += [one for score, name in zip(scores, names, strict=True) for one in (score_text(score), name)]
        values += [one for pair in zip(names, documents, strict=True) for one in pair]
        strings = (b"\xdb%b%b" % (struct.pack(">I", len(one)), one) for one in values)
        yield int(values[0]), b"\xdd%b%b" % (struct.pack(">I", len(values)), b"".join(strings))
        return
    ids = batch.column("id").cast(pa.binary())
    kind = pa.int64() if scores is dues else pa.float64()
    moments = pa.array(scores, kind).cast(pa.string()).cast(pa.binary())
    ends = list(itertools.accumulate(map(len, documents)))
    start = 0
    while start < len(ids):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, min(start + limit, bisect_right(ends, before + CALL_BYTES)))
        some = ids[start:stop]
        texts = pa.array(documents[start:stop], pa.binary())
        messages = count_rows(some)
        yield messages, b"".join((
            b"\xdd", struct.pack(">I", 1 + 4 * len(some)),  # a list of this many strings
            _pack_strings(pa.array([b"%d" % messages])), _pack_strings(moments[start:stop], some),
            _pack_strings(some, texts),
        ))  # fmt: skip
        start = stop


def _pack_strings(*columns: pa.Array) -> pa.Buffer:
    """Return the values of binary columns, row by row, as strings of MessagePack."""
    strings: list[Any] = []
    for column in columns:
        lengths = array("I", pc.binary_length(column).to_pylist())  # four bytes each
        if sys.byteorder == "little":
            lengths.byteswap()
        heads = pa.Array.from_buffers(pa.binary(4), len(column), [None, pa.py_buffer(lengths)])
        strings += [b"\xdb", heads.cast(pa.binary()), column]
    joined = pc.binary_join_element_wise(*strings, b"")
    return joined.buffers()[2].slice(0, pc.sum(pc.binary_length(joined)).as_py())


def to_documents(
    queue: str, batch: pa.RecordBatch, dues: Sequence[int], pushed: Sequence[int | None]
) -> Sequence[bytes]:
    """Return the documents of a PUSHES batch.

    Raises `MessageError` for a row whose document is too large for Redis.
    """
    documents = _encode_documents(batch, dues, pushed)
    largest = max(map(len, documents), default=0)
    if largest > LARGEST_DOCUMENT:
        row = next(row for row, one in enumerate(documents) if len(one) > LARGEST_DOCUMENT)
        rule = f"its document has {len(documents[row]):,} bytes; Redis takes at most {LARGEST_DOCUMENT:,}"
        raise rejected_rows_error(queue, batch, {row: rule})
    return documents


def _encode_documents(batch: pa.RecordBatch, dues: Sequence[int], pushed: Sequence[int | None]) -> Sequence[bytes]:
    ends = {one: b"" if one is None else b',"pushed":%d' % one for one in set(pushed)}  # mostly one for all rows
    if batch.num_rows > SMALL_BATCH and len(ends) == 1 and _are_ordinary(batch):  # by whole columns: almost always
        documents: Sequence[bytes] = pc.binary_join_element_wise(
            b'{"_id":"',
            batch.column("id").cast(pa.binary()),
            b'","payload":',
            batch.column("payload"),
            b',"tries":',
            batch.column("tries").cast(pa.string()).cast(pa.binary()),
            b',"hdrs":{},"mature":',
            pa.array(dues, pa.int64()).cast(pa.string()).cast(pa.binary()),
            ends[pushed[0]] + b"}",
            b"",
        ).to_pylist()
        return documents
    columns = (batch.column(name).to_pylist() for name in ("id", "payload", "payload_kind", "tries"))
    rows = zip(*columns, header_dicts(batch), dues, map(ends.__getitem__, pushed), strict=True)
    return [_encode_document(*row) for row in rows]


def _are_ordinary(batch: pa.RecordBatch) -> bool:
    """Return whether whole columns can be written.

    All rows are JSON without headers, their ids need no escapes, and they fit into one array.
    """
    if len(batch.column("headers").items) or batch.nbytes >= PAGE_BYTES * 16:
        return False
    escaped = pc.match_substring_regex(batch.column("id"), r'[\x00-\x1f"\\]')
    return not pc.any(pc.or_(escaped, pc.not_equal(batch.column("payload_kind"), "json"))).as_py()


def _encode_document(
    id: str, payload: bytes, kind: str, tries: int, headers: dict[str, str], due: int, end: bytes
) -> bytes:
    """Return the document of a message. `end`: the fields that follow `mature`."""
    if kind == "text":
        payload = orjson.dumps(payload.decode())
    elif kind == "binary":
        payload, end = b'"%b"' % base64.b64encode(payload), end + b',"type":"buffer"'
    headers_json = orjson.dumps(headers) if headers else b"{}"
    return b'{"_id":%b,"payload":%b,"tries":%d,"hdrs":%b,"mature":%d%b}' % (
        orjson.dumps(id), payload, tries, headers_json, due, end,
    )  # fmt: skip


#: Tries, headers, when it was pushed (ms), and whether the payload is base64.
_Tail = tuple[int, dict[str, str] | None, int | None, bool]

#: Payload, kind, headers, tries, and when it was pushed (ms).
_Parts = tuple[bytes, str, dict[str, str] | None, int, int | None]


def as_records(
    queue: str, rows: Sequence[DueId], documents: Sequence[bytes], history: Sequence[HistoryFields] | None = None
) -> Records:
    """Return the messages of documents. `history`: how each was processed, for the history view."""
    try:
        batch = _read_batch(queue, rows, documents)
        return Records(batch if history is None else with_history(batch, *zip(*history, strict=True)))
    except READ_ERRORS:
        entries: Sequence[HistoryFields | None] = history or [None] * len(rows)
        records = list(zip(rows, documents, entries, strict=True))
        return read_each(queue, records, lambda one: _read_row(*one), lambda one: _raw_row(*one))


def _read_batch(queue: str, rows: Sequence[DueId], documents: Sequence[bytes]) -> pa.RecordBatch:
    """Read all documents, fast. Raises one of UNREADABLE if one of them cannot be read."""
    dues, names = [int(due) for due, _ in rows], [id for _, id in rows]
    batch = _read_alike(queue, dues, names, documents) if len(rows) > SMALL_BATCH else None
    if batch is not None:
        return batch
    tails: dict[bytes, _Tail | None] = {}  # a batch has few different ones
    parts = [
        _cut_document(id, document, tails) or _parse_document(document)
        for id, document in zip(names, documents, strict=True)
    ]
    payloads, kinds, headers, tries, pushed = zip(*parts, strict=True)
    return build_messages(queue, [id.decode() for id in names], payloads, kinds, headers, dues, tries, pushed)


def _read_row(row: DueId, document: bytes, history: HistoryFields | None) -> damaged.Row:
    """Read one document. Raises `Unreadable` with the reason."""
    due, id = row
    payload, kind, headers, tries, pushed = _cut_document(id, document, {}) or _parse_document(document)
    require(id_of(id).encode() == id, "its id is not UTF-8 text")
    mature = parse_mature(int(due))
    return damaged.Row(id.decode(), payload, kind, headers, mature, parse_tries(tries), history, pushed)


def _raw_row(row: DueId, document: bytes, history: HistoryFields | None) -> damaged.Row:
    """Return the row for a document that cannot be read."""
    due, id = row
    pushed = None
    with suppress(ValueError, IndexError, RecursionError):  # perhaps it is a JSON object
        pushed = _pushed_of(field_texts(document.decode()))
    mature = first_readable(parse_mature, int(due))
    return damaged.Row(id_of(id), *text_or_bytes(document), None, mature, 0, history, pushed)


def _read_alike(
    queue: str, dues: Sequence[int], names: Sequence[bytes], documents: Sequence[bytes]
) -> pa.RecordBatch | None:
    """Read documents by whole columns, if they are alike; else return `None`.

    Alike documents have exactly the form of a push, and objects or lists as payloads. Their ids
    have one length, and their tries and headers are the same.
    """
    head = len(b'{"_id":"","payload":') + len(names[0])
    tail = documents[0][documents[0].rfind(b',"tries":') :]
    found, read = DOCUMENT_TAIL.fullmatch(tail), _parse_tail(tail)
    if found is None or read is None or read[3]:
        return None
    tries, headers, _, _ = read
    ids, texts, moments = pa.array(names, pa.binary()), pa.array(documents, pa.binary()), pa.array(dues, pa.int64())
    payloads = pc.binary_slice(texts, head, -len(tail))
    # The numbers have as many digits in each document, and are cut out: faster than a text.
    due, pushed = found.span(3), found.span(4)
    parts = [(0, due[0]), (due[1], len(tail))] if found[4] is None else [(0, due[0]), (due[1], pushed[0])]
    tests = [
        pc.equal(
            pc.binary_slice(texts, 0, head), pc.binary_join_element_wise(b'{"_id":"', ids, b'","payload":', b"")
        ),
        *(pc.equal(_cut(texts, part, len(tail)), tail[slice(*part)]) for part in parts),
        pc.equal(pc.binary_slice(texts, -1), b"}"),
        pc.is_in(pc.binary_slice(payloads, 0, 1), pa.array([b"{", b"["])),
        pc.is_in(pc.binary_slice(payloads, -1), pa.array([b"}", b"]"])),
    ]
    if not all(pc.all(test).as_py() for test in tests):
        return None
    try:
        if not _numbers(texts, due, len(tail)).equals(moments):
            return None
        moments_of_push = None if found[4] is None else _numbers(texts, pushed, len(tail))
    except pa.ArrowInvalid:  # one has more digits
        return None
    return build_json_messages(queue, ids, payloads, headers, moments, tries, moments_of_push)


def _cut(texts: pa.Array, part: tuple[int, int], tail: int) -> pa.Array:
    """Return a part of the ends of texts. `tail`: how long the ends are."""
    first, last = part
    return pc.binary_slice(texts, first - tail, last - tail if last < tail else None)


def _numbers(texts: pa.Array, part: tuple[int, int], tail: int) -> pa.Array:
    """Return a part of the ends of texts as numbers. Raises `ArrowInvalid` for another text."""
    return _cut(texts, part, tail).cast(pa.string()).cast(pa.int64())


def _cut_document(id: bytes, document: bytes, tails: dict[bytes, _Tail | None]) -> _Parts | None:
    """Cut the payload out of a document in the form of a push. Return `None` for another form."""
    head, end = b'{"_id":"%b","payload":' % id, document.rfind(b',"tries":')
    if not document.startswith(head):
        return None
    text, tail = document[len(head) : end], document[end:]
    if tail not in tails:
        tails[tail] = _parse_tail(tail)
    found = tails[tail]
    if found is None or text.endswith(NOT_PAYLOAD_ENDINGS):
        return None
    tries, headers, pushed, buffer = found
    if text[:1] not in b'" \t\r\n':
        return text, "json", headers, tries, pushed
    try:
        return *_parse_payload(text, buffer), headers, tries, pushed
    except ValueError:
        return None


def _parse_tail(tail: bytes) -> _Tail | None:
    found = DOCUMENT_TAIL.fullmatch(tail)
    if not found:
        return None
    try:
        headers = None if found[2] == b"{}" else _parse_headers(found[2])
        pushed = parse_pushed(int(found[4])) if found[4] else None
        return int(found[1]), headers, pushed, found[5] is not None
    except orjson.JSONDecodeError:
        return None


def _parse_document(document: bytes) -> _Parts:
    """Read a document with its fields in any order. The payload keeps its text.

    Raises `Unreadable` with the reason.
    """
    try:
        fields = field_texts(document.decode())
    except UnicodeDecodeError as error:
        raise Unreadable(f"its document is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (ValueError, IndexError, RecursionError) as error:
        raise Unreadable(f"its document is not a JSON object ({error})") from error
    payload = fields.get("payload", "null").encode()
    headers, tries = fields.get("hdrs", "{}"), fields.get("tries", "0")
    require(headers == "null" or headers.startswith("{"), f"its hdrs is {headers[:MAX_QUOTED]}, not an object")
    parsed_headers = _parse_headers(headers.encode()) if headers != "null" else None
    try:
        count = 0 if tries == "null" else parse_tries(float(tries))
    except ValueError as error:
        raise Unreadable(f"its tries is {tries[:MAX_QUOTED]}, not a number of failures") from error
    content = _parse_payload(payload, fields.get("type") == '"buffer"')
    return *content, parsed_headers, count, _pushed_of(fields)


def _pushed_of(fields: Mapping[str, str]) -> int | None:
    """Return when a message was pushed (ms), from the texts of its fields; `None` if unknown."""
    try:
        return parse_pushed(float(fields["pushed"]))
    except (KeyError, ValueError):
        return None


def _parse_payload(text: bytes, buffer: bool) -> tuple[bytes, str]:
    """Return the payload and its kind, from its JSON text."""
    if text.strip()[:1] != b'"':
        return text, "json"
    string: str = json.loads(text)
    if buffer:
        with suppress(binascii.Error, ValueError):
            return base64.b64decode(string, validate=True), "binary"
    return string.encode(errors="replace"), "text"  # half a surrogate pair has no UTF-8


def _parse_headers(text: bytes) -> dict[str, str]:
    """Return headers from a JSON object. keuss also keeps numbers and booleans in them."""
    values = orjson.loads(text).items()
    return {name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in values}


def read_entry(entry: bytes) -> tuple[int, HistoryFields, bytes]:
    """Return the due time (ms) of a history entry, how the message was processed, and its document.

    If the entry cannot be read, return all of it as the document, which then cannot be read either.
    """
    found = HISTORY_ENTRY.fullmatch(entry)
    if not found:
        return 0, (0, None, "commit"), entry
    consumer, outcome = ((found[at] or b"").decode(errors="replace") for at in (3, 4))
    return int(found[2]), (int(found[1]), consumer or None, outcome or "commit"), found[5]
