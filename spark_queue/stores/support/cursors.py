"""The text of a cursor: a place, and all that the next page needs to know besides.

It is base64url of JSON, after a digest of it. So it is the same in every process, and survives a
restart of the server. It names no secret, and is checked when it comes back: it fits only the queue
and the view that it is from.
"""

from __future__ import annotations

import base64
import binascii
import json
from hashlib import sha256
from typing import Any, NamedTuple

from spark_queue.errors import OptionError
from spark_queue.messages.buckets import MAX_ROWS_DIGITS
from spark_queue.messages.dead_letter import cut_text
from spark_queue.stores.support.scan import ScanPlace

#: How many bytes of SHA-256 a cursor has of itself, of its queue, and of a bucket.
DIGEST_BYTES = 6

#: The form of the JSON. A later version may add others.
CURSOR_VERSION = 1

#: How much of a wrong cursor an error quotes.
QUOTED_CURSOR = 60


class InBucket(NamedTuple):
    """How far a page has come within a bucket.

    `digest`: that of the bucket's id. `rows`: how many messages it had. `done`: how many of them
    were returned; `last` is the id of the last of these. `first` is the id of its first message,
    `None` unless the ids grow. `due`: when the last of its messages is due (ms).
    """

    digest: str
    rows: int
    done: int
    first: str | None
    last: str
    due: int


class Cursor(NamedTuple):
    """After which place to continue, `None`: from the first record.

    `inside`: what was passed of the bucket that follows that place.
    """

    place: ScanPlace | None = None
    inside: InBucket | None = None

    def text(self, scope: str) -> str:
        """Return the text for the next page. `scope` names the queue and the view."""
        content = [CURSOR_VERSION, digest_of(scope), self.place, self.inside]
        packed = json.dumps(content, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_digest(packed) + packed).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str, scope: str) -> Cursor:
        """Return the cursor of a text.

        Raises `OptionError` if it is damaged, or of another queue or view.
        """
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            checked, packed = packed[:DIGEST_BYTES], packed[DIGEST_BYTES:]
            if _digest(packed) != checked:
                raise ValueError
            version, queue, place, inside = json.loads(packed)
            found = cls(place, None if inside is None else InBucket(*inside))
            if version != CURSOR_VERSION or not found._is_sound():
                raise ValueError
        except (ValueError, TypeError, RecursionError, binascii.Error):
            raise wrong_cursor(text, "is not that of a page") from None
        if queue != digest_of(scope):
            raise wrong_cursor(text, "is that of another queue, view or layout")
        return found

    def _is_sound(self) -> bool:
        """Return whether all values have their types; a store checks the place."""
        if self.inside is None:
            return self.place is None or isinstance(self.place, list)
        digest, rows, done, first, last, due = self.inside
        texts: tuple[Any, ...] = digest, last, first or ""
        counts: tuple[Any, ...] = rows, done, due
        return (
            all(isinstance(one, str) for one in texts)
            and all(type(one) is int for one in counts)
            and 0 < done < rows < 10**MAX_ROWS_DIGITS
        )


def wrong_cursor(text: str, fault: str) -> OptionError:
    """Return the error for a cursor that cannot be used."""
    return OptionError(
        f"the cursor {cut_text(text, QUOTED_CURSOR)!r} {fault}: use the one that the page before returned, or none "
        "to begin with the first message",
        option="cursor",
    )


def digest_of(text: str) -> str:
    """Return a short digest of a text."""
    return _digest(text.encode(errors="surrogatepass")).hex()


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()[:DIGEST_BYTES]
