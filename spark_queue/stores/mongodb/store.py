"""Queues in MongoDB: `mongodb://host[:port]/database[?options]` or `mongodb+srv://…`, one collection per queue.

Messages have the layout of keuss' backend `mongo`, so keuss can share a queue: see `documents.py`.
Beside the queues lie

    spark_queue.staged      staged messages: `stages.py`.
    spark_queue.notes       {_id: key, version, value: JSON text}.

* **Durability** is `w=majority` with `j=true`.
* **Time** is the server's, read at each operation.
* **Atomicity**: each operation is atomic for each message. A failed push may have pushed a part of
  its messages; repeated, it completes.
* **Transactions** move messages, a thousand at a time, and publish them: a chunk of up to 5,000
  messages or 8 MB appears in one step.
* **A standalone server** has no transactions. A message that moves is then in both queues for the
  time of one command. If the client dies in between, it is in both until the move is repeated. Both
  queues may deliver it, if another client reserves it in between. The messages of a chunk appear
  one after the other. If the publisher dies, some are missing until the publish is repeated. None
  is lost, and none appears twice.

Two things are special to this store. A message whose lease expired is sorted by that time, as in
keuss, not by when it was due. And a client that is killed in a transaction leaves it open until the
server ends it (`transactionLifetimeLimitSeconds`, 60 s). A publish waits for a second or two only,
since the next publish or unstage ends that transaction. An open move of up to a thousand messages
blocks reserves of its queue, moves to its target, and drops of either queue. No message is lost.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, unquote_plus

import pyarrow as pa
from bson import DatetimeMS
from bson.regex import Regex
from pymongo import IndexModel, MongoClient, ReadPreference, UpdateOne, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WaitQueueTimeoutError,
    WTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from spark_queue.errors import AccessDenied, OptionError, PoolExhausted, StoreError, StoreUnavailable, plural
from spark_queue.messages.buckets import Record, fitting, is_bucket
from spark_queue.messages.json_text import dump_json
from spark_queue.messages.schema import LATEST
from spark_queue.options.masking import harmless_cause, is_harmless, mask, named, scrub
from spark_queue.options.url import Address
from spark_queue.stores.base import PAGE_ROWS, refused
from spark_queue.stores.mongodb.bson_json import CODEC
from spark_queue.stores.mongodb.documents import (
    BUCKET_IDS,
    BUCKETS,
    BY_ID,
    DUE,
    DUPLICATE_KEY,
    FENCED,
    FORGET,
    FREE,
    HELD,
    HELD_FIELDS,
    HELD_ORDER,
    INDEXES,
    NO_END_DATE,
    OURS,
    READY,
    RESERVED,
    SOUND_DOCUMENT,
    THEIRS,
    WAITING_ORDER,
    Document,
    DocumentPage,
    DocumentPlace,
    DocumentState,
    Filter,
    after_record,
    as_records,
    claiming,
    count_of,
    counted,
    due_by,
    due_of,
    dying,
    held_by,
    history_of,
    id_condition,
    insert,
    insert_new,
    lease_end,
    loose,
    moment_of,
    more_tries,
    moved_to,
    pages,
    remembering,
    to_documents,
    weight,
)
from spark_queue.stores.mongodb.keys import greater, id_of, in_order, key_of
from spark_queue.stores.mongodb.signals import MongoSubscription
from spark_queue.stores.mongodb.stages import INTERRUPTED, OWN, STAGED, Stages
from spark_queue.stores.services.listener import Subscription
from spark_queue.stores.services.signals import SignallingStore
from spark_queue.stores.support.counters import Counts, Statistics
from spark_queue.stores.support.damaged import END, NEVER_DUE, Records
from spark_queue.stores.types import (
    Claim,
    Condition,
    Death,
    Finding,
    RawNote,
    Reservation,
    Sizes,
    Staged,
    View,
    Which,
)

T = TypeVar("T")

#: Options of the driver, unless the URL sets them: how long to wait (ms) for a server and for a
#: free connection of the pool; an acknowledged write is durable.
DEFAULTS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 2_000,
    "connectTimeoutMS": 2_000,
    "waitQueueTimeoutMS": 10_000,
    "w": "majority",
    "journal": True,
    "appname": "spark_queue",
}

#: Most ids in one command, and messages in one transaction, which has limits (60 s, the cache).
COMMAND_CHUNK = 10_000
TRANSACTION_CHUNK = 1_000

#: Notes are read as the majority of the servers has them: they cannot be rolled back later.
NOTES, MAJORITY = "notes", ReadConcern("majority")

#: A client that competes with others skips up to 2 ** MAX_SKIP_DOUBLINGS times as many messages as
#: it wants.
CROWD = 6

#: Seconds until a killed command has stopped.
STOPPING = 0.1

#: Bytes of the capped collection of signals, as in keuss.
SIGNALS = 5_242_880

#: Seconds for which the cache says that a queue has its indexes, or lacks some. Other programs may
#: drop or create the queue.
INDEXES_KNOWN, INDEXES_MISSED = 60.0, 5.0

#: Most queues in that cache.
INDEXED = 10_000

#: Error codes of the server.
AUTHENTICATION_FAILED, UNAUTHORIZED, ATLAS_ERROR = 18, 13, 8000
BAD_VALUE, MAJORITY_NOT_KNOWN_YET, QUERY_PLAN_KILLED, NAMESPACE_EXISTS = 2, 134, 175, 48

#: Clients of the parent process after a fork. They must not be used here, nor closed: the parent
#: uses them.
_inherited: list[MongoClient[Document]] = []


def _refused(options: Sequence[str]) -> str:
    """Return which option of a URL the driver refuses, and why; empty if it refuses none."""
    for number, one in enumerate(options):
        try:
            parse_uri(f"mongodb://host/database?{one}")
        except (OSError, ValueError, PyMongoError) as error:
            # After a secret with a raw &, the rest of the secret looks like an option.
            if (name := named(one)) and all(map(is_harmless, options[:number])):
                words = re.findall(r"\w{3,}", unquote_plus(one.partition("=")[2]))
                quotes = any(word in str(error) for word in words)
                return f"its option {name!r}: {'its value is malformed' if quotes else error}"
            return "MongoDB's driver refuses one of its options: check their names and values"
    return ""


class MongoStore(SignallingStore):
    """Queues in one database of MongoDB 4.4 or later.

    Safe to share among threads, and across a fork.
    """

    max_payload = (16 << 20) - (64 << 10)
    shrinks_by = (
        "MongoDB reuses free space, and its own command `compact` returns it to the disk: "
        "db.runCommand({compact: 'collection'})"
    )
    refuses: ClassVar[tuple[object, ...]] = (None,)
    kind: ClassVar[str] = "mongo"
    parameters: ClassVar[tuple[str, ...]] = ("ns",)
    layouts: ClassVar[Mapping[str, str]] = {
        "mongo": "spark_queue.stores.mongodb.store:MongoStore",
        "ps-mongo": "spark_queue.stores.mongodb.layouts:HistoryStore",
        "pl-mongo": "spark_queue.stores.mongodb.layouts:PipelineStore",
        "bucket-mongo-safe": "spark_queue.stores.mongodb.buckets:BucketStore",
    }

    #: The indexes of a collection of messages.
    indexes: ClassVar[Sequence[IndexModel]] = INDEXES

    # How a document holds a record: as in `documents.py`. `_rows_field` has the number of messages
    # of a bucket, `_content_field` the large content, `_id_fields` all that the record's id is made
    # of.
    _rows: ClassVar[str] = "rows"
    _content: ClassVar[str] = "payload"
    _named: ClassVar[Document] = {"_id": 1}
    _held_fields: ClassVar[Document] = HELD_FIELDS
    _bucket_ids: ClassVar[Filter | Regex[str]] = BUCKET_IDS
    _key_of = staticmethod(key_of)
    _weigh = staticmethod(weight)
    _pages = staticmethod(pages)
    _read = staticmethod(as_records)
    _moved = staticmethod(moved_to)
    _made = staticmethod(to_documents)

    @staticmethod
    def _id_of(document: Document) -> str:
        """Return the id of a record, from its `_id_fields`."""
        return id_of(document["_id"])

    @classmethod
    def resolve(cls, url: str) -> str:
        address = Address.of(url)
        address.check(cls.kind, cls.parameters)
        # parse_uri would query the DNS for a mongodb+srv:// URL. Without its prefix and its srv
        # options it is like any other URL.
        plain, _, options = address.url.replace("mongodb+srv://", "mongodb://", 1).partition("?")
        kept = [one for one in options.split("&") if one and not one.lower().startswith("srv")]
        if kept:
            plain += f"?{'&'.join(kept)}"
        try:
            database = parse_uri(plain)["database"]
        except (OSError, ValueError, PyMongoError) as error:
            text = ""
            if "@" not in options:  # else an apparent option may be a part of the password
                text = _refused(kept)
                if not text and isinstance(error, ConfigurationError) and not isinstance(error, InvalidURI):
                    text = scrub(str(error), address.url)
            # The texts of other errors may quote a part of the password.
            text = text or (
                "this is no MongoDB URL; write mongodb://user:password@host:port/database?options, with special "
                "characters of user and password as %40 (@), %3A (:), %2F (/), %3F (?), %23 (#)"
            )
            raise OptionError(f"option 'url': {text}", option="url") from None
        if not database:
            raise OptionError(
                "option 'url': it names no database; write mongodb://host/database (and ?authSource=admin, if the "
                "user was made there)",
                option="url",
            )
        return url

    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        super().__init__(url, patience=patience)
        self._own = OWN  # the prefix of our own collections
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._pid = 0
        self._carries_signals = False  # whether the collection of signals exists
        # By collection: whether it has its indexes, and until when this is believed (monotonic s).
        self._indexed: dict[str, tuple[bool, float]] = {}

    # --- the connection -----------------------------------------------------------------------------------------

    def _database(self) -> Database[Document]:
        with self._lock:
            if self._client is not None and self._pid != os.getpid():
                _inherited.append(self._client)
                self._client = None
            if self._client is None:
                self._client, self._pid = self._connect(), os.getpid()
            return self._client.get_default_database(codec_options=CODEC, read_preference=ReadPreference.PRIMARY)

    def _connect(self) -> MongoClient[Document]:
        url = self._address.url
        given = {name.lower() for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
        return MongoClient(url, **{name: value for name, value in DEFAULTS.items() if name.lower() not in given})

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
                self._client = None

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if "$" in queue or ".." in queue or queue.startswith(("system.", OWN, ".")) or queue.endswith("."):
            raise OptionError(
                f"{queue!r} cannot name a queue: the name of a MongoDB collection has no $, no dot at its ends, no "
                f"two dots in a row, and does not begin with 'system.', nor with {OWN!r}, which is taken",
                option="queue",
                queue=queue,
            )

    def _collection(self, queue: str, *, make: bool = False) -> Collection[Document]:
        """Return the collection of a queue; `create` creates it, and missing indexes.

        Raises `OptionError` if the name of the queue is not allowed.
        """
        self.check_queue(queue)
        found = self._database()[self._place(queue)]
        if make and not self._known(found):
            found.create_indexes(list(self.indexes))
            self._indexed[found.name] = True, time.monotonic() + INDEXES_KNOWN
        return found

    def _place(self, queue: str) -> str:
        """Return the name of the collection of a queue."""
        return queue

    def _marks(self, queue: str) -> Document:
        """Return the fields that name the queue of a document, if its collection holds several."""
        return {}

    def _queue(self, queue: str, *, make: bool = False) -> Collection[Document]:
        """Return the collection of a queue, restricted to that queue; `create` as in `_collection`.

        Raises `OptionError` if the name of the queue is not allowed.
        """
        return self._collection(queue, make=make)

    def _known(self, queue: Collection[Document]) -> bool:
        """Return whether the collection has all our indexes, from a cache."""
        known, until = self._indexed.get(queue.name, (False, 0.0))
        if time.monotonic() > until:
            if len(self._indexed) >= INDEXED:
                self._indexed.clear()
            known = queue.index_information().keys() >= {one.document["name"] for one in self.indexes}
            self._indexed[queue.name] = known, time.monotonic() + (INDEXES_KNOWN if known else INDEXES_MISSED)
        return known

    def _by(self, queue: Collection[Document], index: IndexModel) -> dict[str, Any]:
        """Return the argument that makes an operation use an index: the server may choose a scan.

        A queue that only other programs have used has none of our indexes. Reading creates none.
        """
        return {"hint": index.document["name"]} if self._known(queue) else {}

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T:
        def translated(*arguments: object) -> T:
            with self._translated():
                return operation(*arguments)

        return super()._attempt(translated, *arguments)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except PyMongoError as error:
            raise self._told(error) from harmless_cause(error, self.url)

    def _told(self, error: PyMongoError) -> StoreError:
        """Return our error for one of the driver's."""
        shown = mask(self.url)
        text = scrub(str(error).partition(", full error:")[0].partition(", Timeout:")[0], self.url)
        code = error.code if isinstance(error, OperationFailure) else None
        if isinstance(error, WaitQueueTimeoutError):
            return self._exhausted()
        if isinstance(error, BulkWriteError):  # its text quotes the documents
            first = (error.details["writeErrors"] or error.details["writeConcernErrors"])[0]
            text, code = first["errmsg"], first["code"]
        if code == BAD_VALUE and "hint" in str(error):
            self._indexed.clear()
            return StoreUnavailable(f"{shown}: the indexes of the queue were dropped", url=shown)
        again = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")
        if (
            isinstance(error, ConnectionFailure | WTimeoutError)
            or any(error.has_error_label(label) for label in again)
            or code == DUPLICATE_KEY  # in a transaction: another client pushed the same id
            or code == MAJORITY_NOT_KNOWN_YET
            or code == INTERRUPTED  # another publisher assumed that this one was dead
            or code == QUERY_PLAN_KILLED  # the queue was dropped while it was read
        ):
            return StoreUnavailable(f"{shown}: {text}", url=shown)
        if code == UNAUTHORIZED:
            return AccessDenied(f"{shown}: {text}: the user needs the role readWrite on this database", url=shown)
        hint = {
            AUTHENTICATION_FAILED: ": check user, password, and authSource, the database in which the user was made",
            ATLAS_ERROR: ": check user and password",
        }.get(code or 0, "")
        return StoreError(f"{shown}: {text.rstrip('.')}{hint}", url=shown)

    def _exhausted(self) -> StoreError:
        pool = self._database().client.options.pool_options
        shown, waited = mask(self.url), pool.wait_queue_timeout
        return PoolExhausted(
            f"{shown}: all {pool.max_pool_size} connections of this client are in use, and none became free in "
            f"{waited:g} s: use fewer threads, or set a larger maxPoolSize in the URL (waitQueueTimeoutMS sets how "
            "long to wait)",
            url=shown,
        )

    def _hello(self) -> tuple[int, bool]:
        """Return the server's time (ms), and whether it has transactions."""
        hello = self._database().client.admin.command("hello", codec_options=CODEC)
        return int(hello["localTime"]), "setName" in hello or hello.get("msg") == "isdbgrid"

    def _now(self) -> int:
        return self._hello()[0]

    def _server(self) -> str:
        return f"mongodb {self._database().client.server_info()['version']}"

    def _examine(self) -> list[Finding]:
        if self._hello()[1]:
            found = [Finding("transactions", "good", "available")]
        else:
            found = [
                Finding(
                    "transactions", "worry", "none, on a standalone server: no buckets, and moves in two steps",
                    "make it a replica set (one server is enough)",
                )
            ]  # fmt: skip
        queues = self._queues()
        bare = []
        for queue in queues:
            collection = self._collection(queue)
            self._indexed.pop(collection.name, None)
            if not self._known(collection):
                bare.append(queue)
        if bare:
            shown = ", ".join(bare[:5]) + (f" and {len(bare) - 5} more" if len(bare) > 5 else "")
            found.append(
                Finding(
                    "indexes", "worry", f"missing for {shown}: dropped, or only other programs have used the queue",
                    "push or reserve with spark_queue once: that creates them",
                )
            )  # fmt: skip
        else:
            found.append(Finding("indexes", "good", f"complete for {plural(len(queues), 'queue')}"))
        return found

    # --- signals ------------------------------------------------------------------------------------------------

    def _send(self, queue: str, signal: int | str) -> None:
        told = signal if isinstance(signal, str) else float(signal)
        with self._translated():
            self._signalled().insert_one({"event": self.topic(queue), "message": told})

    @contextmanager
    def _subscribe(self) -> Iterator[Subscription]:
        with self._translated():
            self._carries_signals = False  # the database may have been dropped since
            signals = self._signalled()
            if signals.database.client.options.pool_options.max_pool_size == 1:
                raise StoreError(
                    f"{mask(self.url)}: its maxPoolSize=1 leaves no connection for signals: set 2 or more",
                    url=mask(self.url),
                )
            with closing(MongoSubscription(signals, self.topic(""), self._now())) as subscription:
                yield subscription

    def _signalled(self) -> Collection[Document]:
        """Return the collection of signals: capped, in its own database, as is keuss' default."""
        database = self._database()
        signals = database.client.get_database(f"{database.name}_signal", write_concern=WriteConcern(w=1))
        if not self._carries_signals:
            try:
                made = signals.create_collection("default", capped=True, size=SIGNALS, check_exists=False)
                made.insert_one({"dummy": True})  # a tailable cursor fails on an empty one
            except OperationFailure as error:
                if error.code != NAMESPACE_EXISTS:
                    raise
            self._carries_signals = True
        return signals["default"]

    # --- messages in --------------------------------------------------------------------------------------------

    def _push(self, queue: str, batch: pa.RecordBatch) -> int:
        return insert(self._collection(queue, make=True), self._sound(queue, batch), weigh=self._weigh)

    def _sound(self, queue: str, batch: pa.RecordBatch) -> list[Document]:
        """Return the rows as documents.

        Raises `MessageError` if MongoDB cannot keep some rows, and `StoreError` for buckets on a
        standalone server.
        """
        now, transactions = self._hello()
        documents = self._documents(queue, batch, now)
        if not transactions and any(self._rows in one for one in documents):
            raise StoreError(
                f"{queue!r}: layout=bucket needs transactions, which a standalone MongoDB server does not have: make "
                "it a replica set (one server is enough), or use layout=single",
                queue=queue,
            )
        return documents

    def _documents(self, queue: str, batch: pa.RecordBatch, now: int) -> list[Document]:
        documents, wrong = self._made(batch, now)
        if wrong:
            raise refused(queue, batch, wrong)
        marks = self._marks(queue)
        return [one | marks for one in documents] if marks else documents

    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        documents = self._sound(queue, batch)
        with self._session() as session:
            self._stages().put(queue, stage, part, documents, session)

    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        return self._stages().publish(stages, self._hello()[1])

    def _staged(self, stage: str) -> list[Staged]:
        return self._stages().held(stage)

    def _unstage(self, stage: str, keep: Sequence[str]) -> int:
        return self._stages().remove(stage, keep)

    def _stages(self) -> Stages:
        return Stages(
            self._database(),
            partial(self._collection, make=True),
            self._attempt,
            self.patience,
            self._own + STAGED,
            self._weigh,
        )

    # --- reservations -------------------------------------------------------------------------------------------

    def _claim(self, queue: str, tag: str, limit: int, enough: int, lease: int | None, before: int) -> Claim:
        found = self._queue(queue)
        if held := found.count_documents({**FENCED, "_tag": tag}, **self._by(found, HELD)):
            return Claim(held + self._more(found, {**FENCED, "_tag": tag}), held=True)
        now = self._now()
        due = due_by(min(now, before))
        claim = claiming(tag, DatetimeMS(now), lease_end(now, lease))
        claimed = more = lost = 0
        large: str | None = None
        while claimed + more < enough and large is None:
            wanted = enough - claimed - more
            most = min(wanted, COMMAND_CHUNK)  # records; each has a message or more
            # A client that has lost messages to others skips some: most likely they are taken, too.
            # Otherwise all clients would compete for the same messages again and again.
            past = random.randrange(most << min(lost, CROWD)) if lost else 0
            ids = found.find(due, self._named, skip=past, limit=most, batch_size=most, **self._by(found, READY))
            in_turn = ((one["_id"], self._id_of(one)) for one in ids.sort(WAITING_ORDER))
            first, rows, large = fitting(in_turn, limit - claimed - more, wanted)
            if not first and past:
                lost = 0  # the skip went beyond the end
                continue
            if not first:
                break
            self._queue(queue, make=True)  # only now: an empty reserve creates no queue
            # Messages that another client has just reserved no longer match. Then another round
            # follows.
            which = {**due, "_id": {"$in": first}}
            with self._session() as session:
                taken: int = found.update_many(which, claim, session=session, **BY_ID).modified_count
            claimed += taken
            if taken < len(first):
                lost += 1
                large = None  # it may fit now
            if rows != len(first):
                more = self._more(found, {**FENCED, "_tag": tag})
        return Claim(claimed + more, large)

    def _more(self, queue: Collection[Document], which: Filter) -> int:
        """Return how many more messages than records match a filter: buckets hold many."""
        return sum(count_of(one[self._rows]) - 1 for one in self._wide(queue, which))

    def _wide(self, queue: Collection[Document], which: Filter) -> list[Document]:
        """Return the buckets that match a filter: `_id`, and the number of messages of each."""
        buckets = {"$and": [which, {self._rows: {"$exists": True}}]}
        return list(queue.find(buckets, {self._rows: 1}, **self._by(queue, BUCKETS)))

    @contextmanager
    def _session(self) -> Iterator[ClientSession]:
        """Yield a session for one command, and kill it if the connection breaks.

        Without the kill, the server would continue the command during the next attempt. A claim
        would return the messages that the tag holds so far, and then the tag would get more.
        """
        client = self._database().client
        with client.start_session() as session:
            try:
                yield session
            except ConnectionFailure:
                with suppress(StoreError):
                    self._attempt(client.admin.command, "killSessions", [session.session_id])
                time.sleep(STOPPING)
                raise

    def _ready(self, queue: str, limit: int, before: int) -> int:
        found = self._queue(queue)
        due = due_by(min(self._now(), before))
        if not limit:
            return 0
        ready = found.count_documents(due, limit=limit, **self._by(found, READY))
        return min(limit, ready + self._more(found, due)) if ready < limit else limit

    def _spare(self, queue: str, after: DocumentPlace | None, rows: int) -> Records:
        found, now = self._queue(queue), self._now()
        which: Document = {"$and": [FREE.which, {"mature": {"$lte": DatetimeMS(now)}}]}
        if after is not None:
            which["$and"].append(after_record("mature", after))
        some = found.find(which, limit=rows, batch_size=rows, **self._by(found, READY)).sort(WAITING_ORDER)
        with some as documents:
            page = next(self._pages(documents, rows), None)
        return self._records_of(queue, page, "mature")

    def _records_of(
        self, queue: str, page: DocumentPage | None, field: str, whole: Callable[[Document], Document] | None = None
    ) -> Records:
        """Return a page, read in the order of a field and `_id`, as records."""
        if page is None:
            return END
        last = page.documents[-1]
        return self._read(queue, page, whole)._replace(after=DocumentPlace(last.get(field), last["_id"]))

    def _recast(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        now, transactions = self._hello()
        found, keys = self._queue(queue, make=True), [self._key_of(one.id) for one in records]
        state = loose(now).which if tag is None else {**FENCED, "_tag": tag}
        documents = self._documents(queue, batch, now)
        with self._together(transactions) as session:
            which = {**state, "_id": {"$in": keys}}
            old = list(found.find(which, {self._content: 0}, session=session, **BY_ID))
            if {self._id_of(one) for one in old} != {one.id for one in records}:
                return False
            for one in documents:
                # After an expired lease, the tries of the old record include its failure.
                one["tries"] = old[0].get("tries", 0)
                if tag is not None:
                    held = {name: old[0][name] for name in ("mature", "reserved", "_tag", "_reserved")}
                    one |= {"_mature": one["mature"], **held}
            if session is None:  # for a moment both exist, rather than none
                insert(self._collection(queue), documents, weigh=self._weigh)
                return bool(found.delete_many(which, **BY_ID).deleted_count == len(keys))
            found.delete_many(which, session=session, **BY_ID)  # first: old and new may share an id
            insert_new(self._collection(queue), [one["_id"] for one in documents], documents, session)
            return True

    def _page(self, queue: str, tag: str, after: DocumentPlace | None, rows: int) -> Records:
        found = self._queue(queue)
        which: Document = {**FENCED, "_tag": tag}
        if after is not None:
            which |= after_record("_mature", after)
        some = found.find(which, self._held_fields, limit=rows, batch_size=rows, **self._by(found, HELD))
        with some.sort(HELD_ORDER) as documents:
            page = next(self._pages(documents, rows), None)
        return self._records_of(
            queue, page, "_mature", lambda one: found.find_one({"_id": {"$eq": one["_id"]}}, **BY_ID) or one
        )

    def _renew(self, queue: str, tag: str, lease: int | None) -> int:
        found = self._queue(queue)
        until = lease_end(self._now(), lease)
        renewed = found.update_many(held_by(tag), {"$set": {"mature": until}}, **self._by(found, HELD))
        return renewed.matched_count + self._more(found, held_by(tag)) if renewed.matched_count else 0

    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int:
        found = self._queue(queue)
        held = self._among(found, OURS._replace(which=held_by(tag)), ids)
        if not history:
            return self._counted(found, ids, held, lambda which, by: found.delete_many(which, **by).deleted_count)
        fields, forgotten = remembering(self._now(), history, tag, outcome)
        literal = {name: {"$literal": one} for name, one in fields.items()}
        keep: list[Document] = [{"$set": literal | {"tries": more_tries(-1)}}, {"$unset": forgotten}]
        return self._counted(found, ids, held, lambda which, by: found.update_many(which, keep, **by).modified_count)

    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, endless: bool
    ) -> int:
        found = self._queue(queue)
        which = held_by(tag) if endless else {"$and": [held_by(tag), {"mature": {"$lt": NO_END_DATE}}]}
        held = self._among(found, OURS._replace(which=which), ids)
        due = DUE if delay is None else moment_of(self._now() + delay)
        tries = "$tries" if failed else more_tries(-1)  # the claim has added one
        give: list[Document] = [{"$set": {"mature": due, "tries": tries}}, {"$unset": list(FORGET)}]
        return self._counted(found, ids, held, lambda which, by: found.update_many(which, give, **by).modified_count)

    def _retag(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int:
        found = self._queue(queue)
        # A message that is already transferred does not match again.
        which = {"$and": [held_by(tag), {"_tag": {"$ne": to}}]}
        change = {"$set": {"_tag": to, "mature": lease_end(self._now(), lease)}}
        passing = self._among(found, OURS._replace(which=which), ids)
        return self._counted(
            found, ids, passing, lambda some, by: found.update_many(some, change, **by).modified_count
        )

    def _counted(
        self,
        queue: Collection[Document],
        ids: Sequence[str] | None,
        parts: Iterable[tuple[Document, dict[str, Any]]],
        act: Callable[[Document, dict[str, Any]], int],
    ) -> int:
        """Apply an operation to all records that match; return the number of messages.

        Buckets come first, by their ids, so that their number of messages is known. If some are
        lost in between, each counts as one message. The number is then too low, so the holder
        learns that it has lost messages.
        """
        done = 0
        looking = self._has_buckets(queue) if ids is None else any(map(is_bucket, ids))
        for which, by in parts:
            if looking and (buckets := self._wide(queue, which)):
                names = [one["_id"] for one in buckets]
                acted = act({"$and": [which, {"_id": {"$in": names}}]}, BY_ID)
                done += sum(count_of(one[self._rows]) for one in buckets) if acted == len(names) else acted
            done += act(which, by)
        return done

    def _has_buckets(self, queue: Collection[Document]) -> bool:
        """Return whether any record of the queue is a bucket."""
        return queue.find_one({"_id": self._bucket_ids}, {"_id": 1}, **BY_ID) is not None

    def _among(
        self, queue: Collection[Document], state: DocumentState, ids: Sequence[str] | None, size: int = COMMAND_CHUNK
    ) -> Iterator[tuple[Document, dict[str, Any]]]:
        """Yield filters for the messages in a state, each with the index to use.

        With `ids`, there is a filter for each `size` of them.
        """
        if ids is None:
            yield dict(state.which), self._by(queue, state.by)
        else:
            for part in parts_of([self._key_of(id) for id in ids], size):
                yield {**state.which, "_id": {"$in": part}}, BY_ID

    def _reservations(self, queue: str, tag: str) -> list[Reservation]:
        found = self._queue(queue)
        which = held_by(tag) if tag else {**FENCED, "_tag": {"$type": "string"}}
        group = {"_id": "$_tag", "rows": {"$sum": counted(self._rows)}, "until": {"$max": "$mature"}}
        steps = [{"$match": which}, {"$group": group}, {"$sort": {"_id": 1}}]
        return [
            Reservation(one["_id"], int(one["rows"]), None if one["until"] >= NO_END_DATE else int(one["until"]))
            for one in found.aggregate(steps, **self._by(found, HELD))
        ]

    # --- between queues -----------------------------------------------------------------------------------------

    def _move(self, queue: str, to: str, which: Which, death: Death | None) -> int:
        if which.limit == 0:
            return 0
        # The target gets its indexes now: a transaction cannot create them.
        found, target = self._queue(queue), self._collection(to, make=True)
        now, transactions = self._hello()
        state, moving = self._moving(found, which, now, dies=death is not None)

        def transfer(part: list[Any]) -> tuple[int, list[Any]]:
            """Move the first of these; return the number of messages moved, and the rest."""
            with self._together(transactions) as session:
                where = {**state.which, "_id": {"$in": part}}
                with found.find(where, session=session, **BY_ID).sort("_id", 1) as some:
                    documents = next((page.documents for page in self._pages(some, TRANSACTION_CHUNK)), [])
                copied = [one["_id"] for one in documents]
                entering = [self._moved(one, queue, state.ahead, death, now) for one in documents]
                if session is None:
                    insert(target, entering, weigh=self._weigh)
                else:
                    insert_new(target, copied, entering, session, self._weigh)
                where["_id"] = {"$in": copied}  # delete only copied messages
                if death is None or not death.history:
                    gone = found.delete_many(where, session=session, **BY_ID).deleted_count
                else:
                    keep = self._burying(queue, which.tag, state.ahead, death, now)
                    gone = found.update_many(where, keep, session=session, **BY_ID).modified_count
                moved = self._weigh(copied, documents) if gone == len(copied) else gone
                return moved, [id for id in part if documents and in_order(id) > in_order(documents[-1]["_id"])]

        moved = 0
        for part in parts_of(moving, TRANSACTION_CHUNK):
            left = part
            while left:
                number, left = self._attempt(transfer, left)
                moved += number
        return moved

    @staticmethod
    def _burying(queue: str, tag: str | None, ahead: int, death: Death, now: int) -> list[Document]:
        """Return the update that turns messages that become dead letters into history."""
        fields, forgotten = remembering(now, death.history, tag, "dead")
        told = {"tries": more_tries(death.failed - ahead), "hdrs": dying(queue, ahead, death, now), "_mature": DUE}
        return [{"$set": told | {name: {"$literal": one} for name, one in fields.items()}}, {"$unset": forgotten}]

    def _moving(
        self, found: Collection[Document], which: Which, now: int, *, dies: bool
    ) -> tuple[DocumentState, list[Any]]:
        """Return the state of the messages to move, and their `_id`, in order if limited."""
        state = loose(now) if which.tag is None else OURS._replace(which=held_by(which.tag))
        if dies:  # the next read makes a damaged message a dead letter
            state = state._replace(which={"$and": [state.which, SOUND_DOCUMENT]})
        if which.min_tries:
            state = state._replace(which={**state.which, "tries": {"$gte": which.min_tries + state.ahead}})
        moving: list[Any] = []
        together = COMMAND_CHUNK if which.limit is None or not which.ids else len(which.ids)
        for where, by in self._among(found, state, which.ids, together):
            some = found.find(where, self._named, **by)
            if which.limit is None:
                moving += [one["_id"] for one in some]
            else:
                some = some.sort(state.order).limit(which.limit)
                in_turn = ((one["_id"], self._id_of(one)) for one in some)
                moving += fitting(in_turn, which.limit, which.limit)[0]
        return state, moving

    @contextmanager
    def _together(self, transactions: bool) -> Iterator[ClientSession | None]:
        """Yield the session of a transaction; `None` if the server has none."""
        if not transactions:
            yield None
            return
        with (
            self._database().client.start_session() as session,
            session.start_transaction(read_concern=ReadConcern("snapshot")),
        ):
            yield session

    # --- statistics and pause -----------------------------------------------------------------------------------

    def _count(self, counts: Counts) -> None:
        known = [
            UpdateOne(
                {"_id": self._counted_as(queue)},
                {
                    "$setOnInsert": {"ns": self.ns, "name": queue, "opts": {}},
                    **({"$inc": {f"counters.{act}": number for act, number in acts.items()}} if acts else {}),
                },
                upsert=True,
            )
            for queue, acts in counts.items()
        ]
        with self._translated():
            self._counts(WriteConcern(w=1)).bulk_write(known, ordered=False)

    def _statistics(self, queue: str | None) -> dict[str, Statistics]:
        prefix = self._counted_as("")
        which: Document = {"_id": {"$gt": prefix, "$lt": f"{prefix}\U0010ffff"}}
        found = self._counts().find(which if queue is None else {"_id": self._counted_as(queue)})
        return {
            one["_id"].removeprefix(prefix): Statistics.of(one.get("counters", {}), bool(one.get("paused")))
            for one in found
        }

    def _set_paused(self, queue: str, paused: bool) -> None:
        change = {"$set": {"paused": paused}, "$setOnInsert": {"ns": self.ns, "name": queue, "opts": {}}}
        self._counts().update_one({"_id": self._counted_as(queue)}, change, upsert=True)

    def _forget(self, queue: str) -> None:
        self._counts().delete_one({"_id": self._counted_as(queue)})

    def _counted_as(self, queue: str) -> str:
        """Return the `_id` of a queue's statistics."""
        return f"keuss:stats:{self.ns}:{queue}"

    def _counts(self, concern: WriteConcern | None = None) -> Collection[Document]:
        """Return the collection of statistics, in its own database, as is keuss' default."""
        database = self._database()
        return database.client.get_database(f"{database.name}_stats", write_concern=concern)["keuss_stats"]

    # --- notes --------------------------------------------------------------------------------------------------

    def _note(self, key: str) -> RawNote | None:
        found = self._settled_notes().find_one({"_id": key})
        return None if found is None else _as_note(found)

    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        notes, which = self._database()[self._own + NOTES], {"_id": key, "version": version}
        if value is None:
            return notes.delete_one(which).deleted_count == 1
        text = dump_json(value).decode()  # BSON forbids some names that JSON allows
        change = {"$set": {"value": text}, "$inc": {"version": 1}, "$currentDate": {"written": True}}
        try:
            done = notes.update_one(which, change, upsert=not version)
        except DuplicateKeyError:
            return False
        return bool(done.modified_count or done.upserted_id)

    def _notes(self, prefix: str) -> dict[str, RawNote]:
        which = {"_id": {"$gte": prefix, "$lt": f"{prefix}\U0010ffff"}}
        return {one["_id"]: _as_note(one) for one in self._settled_notes().find(which)}

    def _settled_notes(self) -> Collection[Document]:
        return self._database().get_collection(self._own + NOTES, read_concern=MAJORITY)

    # --- reading ------------------------------------------------------------------------------------------------

    def _never_due(self, queue: str) -> list[str]:
        found = self._queue(queue)
        which = {"processed": None, "mature": {"$not": {"$type": "date"}}}
        some = found.find(which, self._named | {"_sid": 1}, limit=NEVER_DUE, **self._by(found, READY))
        return [one.get("_sid") or self._id_of(one) for one in some]

    def _sizes(self, queue: str) -> Sizes:
        found = self._queue(queue)
        now = self._now()
        later = {"mature": {"$gt": DatetimeMS(now)}}
        by = self._by(found, READY)
        ready = found.count_documents(due_by(now), **by)
        waiting = found.count_documents({"processed": None, **later}, **by)
        reserved = found.count_documents({**RESERVED, **later}, **self._by(found, HELD))
        if self._has_buckets(found):
            ready += self._more(found, due_by(now))
            waiting += self._more(found, {"processed": None, **later})
            reserved += self._more(found, {"processed": None, "_tag": {"$exists": True}, **later})
        first = self._first(found) if ready else None
        age = None if first is None else max(0, now - first)
        # The counts are not one snapshot, so the difference may be negative.
        return Sizes(ready, max(0, waiting - reserved), reserved, age)

    def _next_mature(self, queue: str) -> int | None:
        found = self._queue(queue)
        steps: list[Document] = [
            {"$match": due_by(LATEST)},
            {"$sort": dict(WAITING_ORDER)},
            {"$limit": 1},
            {"$project": {"_id": 0, "mature": 1, "now": "$$NOW"}},  # a waiting client asks often: one round trip
        ]
        for first in found.aggregate(steps, **self._by(found, READY)):
            return None if first["mature"] >= NO_END_DATE else int(first["mature"]) - int(first["now"])
        return None

    def _first(self, queue: Collection[Document]) -> int | None:
        """Return the earliest `mature` in the queue (ms)."""
        some = queue.find(due_by(LATEST), {"mature": 1, "_id": 0}, **self._by(queue, READY))
        return next((int(one["mature"]) for one in some.sort(WAITING_ORDER).limit(1)), None)

    def _peek(
        self, queue: str, where: Sequence[Condition], limit: int | None, view: View, rows: int
    ) -> Iterator[Records]:
        states = (FREE, OURS, THEIRS) if view == "messages" else (history_of(self.now()),)
        ids = [id_condition(one) for one in where if one.column == "id"]  # the same in every state
        if limit is not None:
            first: dict[str, Document] = {}
            for state in states if limit else ():
                by = BY_ID if ids else {}
                which = {"$and": [state.where(where), *ids]}
                for one in self._attempt(self._first_of, queue, state, which, by, limit):
                    first.setdefault(id_of(one["_id"]), one)  # its state may have changed meanwhile
            ordered = sorted(first.values(), key=lambda one: (in_order(due_of(one)), in_order(one["_id"])))
            yield from (self._read(queue, page) for page in self._pages(ordered[:limit], rows))
            return
        # In the order of `_id`, which never changes: no message is returned twice. In pages, since
        # the caller may be slow.
        all_states: list[Filter] = [{"$or": [state.where(where) for state in states]}, *ids]
        after: list[Filter] = []
        while page := self._attempt(self._some_of, queue, {"$and": all_states + after}, rows):
            yield self._read(queue, page)
            after = [{"$or": greater("_id", page.documents[-1]["_id"])}]

    def _first_of(
        self, queue: str, state: DocumentState, which: Filter, by: dict[str, Any], limit: int
    ) -> list[Document]:
        """Return the first `limit` messages in a state, in order.

        Raises `OptionError` if the name of the queue is not allowed.
        """
        found = self._queue(queue)
        return list(found.find(which, limit=limit, **(by or self._by(found, state.by))).sort(state.order))

    def _some_of(self, queue: str, which: Filter, rows: int) -> DocumentPage | None:
        """Return the first messages by `_id`: up to `rows`, ending early at PAGE_BYTES.

        Raises `OptionError` if the name of the queue is not allowed.
        """
        with self._queue(queue).find(which, limit=rows, batch_size=rows, **BY_ID).sort("_id", 1) as documents:
            return next(self._pages(documents, rows), None)

    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        which: Document = {"_id": self._bucket_ids if id is None else self._key_of(id), "processed": None}
        after: list[Filter] = []
        while page := self._attempt(self._some_of, queue, {"$and": [which, *after]}, PAGE_ROWS):
            yield self._read(queue, page)
            after = [{"$or": greater("_id", page.documents[-1]["_id"])}]

    def _queues(self) -> list[str]:
        names = self._database().list_collection_names(filter={"type": "collection"})
        return [name for name in names if not name.startswith(("system.", OWN))]

    # --- housekeeping -------------------------------------------------------------------------------------------

    def _forget_past(self, queue: str, ids: Sequence[str]) -> int:
        found = self._queue(queue)
        past = DocumentState({"processed": {"$exists": True, "$ne": NO_END_DATE}}, "mature", 0, READY, WAITING_ORDER)
        return sum(found.delete_many(which, **by).deleted_count for which, by in self._among(found, past, ids))

    def _purge(self, queue: str) -> int:
        found = self._queue(queue)
        free = [(dict(loose(self._now()).which), self._by(found, READY))]
        return self._counted(found, None, free, lambda which, by: found.delete_many(which, **by).deleted_count)

    def _drop(self, queue: str) -> None:
        self._queue(queue).drop()
        self._indexed.pop(queue, None)


def _as_note(document: Document) -> RawNote:
    written = document.get("written")
    value, version = document.get("value"), document.get("version")
    return RawNote(value, version, int(written) if isinstance(written, DatetimeMS) else None)  # type: ignore[arg-type]


def parts_of(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items, `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
