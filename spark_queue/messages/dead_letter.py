"""A dead letter that fits: in the forms that it may have, so that every queue takes one of them.

A dead letter has the payload and the headers of its message, and headers that say why. If the queue
does not take that, the payload becomes a text or bytes, then an object with that text. At last only
its beginning is kept. If headers are too many or too large, the payload is the whole message as
JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson
import pyarrow as pa

from spark_queue.errors import MessageError
from spark_queue.messages.headers import cut_headers, size_of
from spark_queue.messages.json_text import clean_text
from spark_queue.messages.payload import as_text, text_or_bytes
from spark_queue.messages.schema import PUSHES

#: The headers that a dead letter gets: why, and from where, when and after how many tries.
ERROR_HEADER, FROM_HEADER, DEAD_AT_HEADER, TRIES_HEADER = "x-error", "x-dl-from-queue", "x-dl-t", "x-dl-tries"

#: The id of the message, if the dead letter cannot have it.
ID_HEADER = "x-dl-id"

#: Of a payload that is cut: the number of all its bytes, and their SHA-256. A damaged record always
#: has the second one: it is that of the raw record, without fields that a retry changes.
SIZE_HEADER, DIGEST_HEADER = "x-dl-size", "x-dl-sha256"

#: Of headers that are cut: how many there were, and their bytes.
HEADERS_HEADER, HEADERS_SIZE_HEADER = "x-dl-headers", "x-dl-headers-size"

#: Most bytes of a reason, and of an id in a header.
MAX_REASON_BYTES, KEPT_ID_BYTES = 4_000, 1_000

#: How many bytes of a payload a dead letter keeps, if it cannot keep all.
KEPT_BYTES = 1 << 20


def cut_text(text: str, size: int) -> str:
    """Return the beginning of a text, of at most `size` bytes of UTF-8."""
    encoded = clean_text(text).encode()
    return encoded.decode() if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"


@dataclass(frozen=True, slots=True)
class NewDeadLetter:
    """A message that becomes a dead letter.

    `headers` are those of the message, `reasons` those that it gets. It has the id `spare_id` if
    the queue does not take its own, or, with `needs_spare`, in any case. `pushed`: when the message
    was pushed, if it was in a queue and that is known.
    """

    id: str
    payload: bytes
    kind: str
    headers: Mapping[str, str]
    reasons: Mapping[str, str]
    spare_id: str
    needs_spare: bool = False
    pushed: datetime | None = None

    def variants(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that a queue may accept, the best one first."""
        content, kind = self.payload, self.kind
        reasons = dict(self.reasons)
        all_headers = {**self.headers, **reasons}
        is_long = len(self.id.encode()) > KEPT_ID_BYTES
        if is_long or cut_headers(self.headers, reasons).keys() != all_headers.keys():
            content, kind = self._whole_message(), "text"
            reasons[HEADERS_HEADER] = str(len(self.headers))
            reasons[HEADERS_SIZE_HEADER] = str(sum(size_of(*one) for one in self.headers.items()))
        forms = [(content, kind)]
        if kind == "json":
            forms.append(text_or_bytes(content))
        for form in forms:
            yield from self._rows(form, reasons)
        yield from self._rows(_document(content, kind), reasons)
        reasons = {DIGEST_HEADER: sha256(content).hexdigest()} | reasons | {SIZE_HEADER: str(len(content))}
        cut = text_or_bytes(content[:KEPT_BYTES])
        if kind != "binary":
            cut = content[:KEPT_BYTES].decode(errors="ignore").encode(), "text"
        yield from self._rows(cut, reasons)
        yield from self._rows(_document(*cut), reasons)

    def _rows(self, form: tuple[bytes, str], reasons: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the row with its own id, if it may have that, then with the spare one."""
        row = {"payload": form[0], "payload_kind": form[1], "tries": 0, "pushed": self.pushed}
        if not self.needs_spare:
            yield row | {"id": self.id, "headers": list(cut_headers(self.headers, reasons).items())}
        renamed = {ID_HEADER: cut_text(self.id, KEPT_ID_BYTES), **reasons}
        yield row | {"id": self.spare_id, "headers": list(cut_headers(self.headers, renamed).items())}

    def _whole_message(self) -> bytes:
        payload = as_text(self.payload, self.kind).decode(errors="replace")
        return orjson.dumps({"id": clean_text(self.id), "payload": payload, "headers": dict(self.headers)})


def _document(content: bytes, kind: str) -> tuple[bytes, str]:
    """Return the content as an object of texts, for layouts that take nothing else."""
    text = as_text(content, "binary" if kind == "binary" else text_or_bytes(content)[1]).decode()
    return orjson.dumps({"document": text}), "json"


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = PUSHES) -> pa.RecordBatch:
    """Return variants as a PUSHES batch, or WRITTEN for messages that were pushed before."""
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def put_letters(put: Callable[[pa.RecordBatch], object], letters: Sequence[NewDeadLetter]) -> None:
    """Push or stage dead letters, each in its first variant that the queue accepts.

    `put` raises `MessageError` before it writes anything. So does this function, if a queue accepts
    no variant of a letter.
    """
    left = [one.variants() for one in letters]
    rows = [next(one) for one in left]
    while rows:
        try:
            put(batch_of(rows))
        except MessageError as error:
            if not error.rows:
                raise
            for row in error.rows:
                following = next(left[row], None)
                if following is None:
                    raise
                rows[row] = following
        else:
            return
