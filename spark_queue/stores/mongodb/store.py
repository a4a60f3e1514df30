"""Queues in MongoDB: `mongodb://host[:port]/database[?options]` or `mongodb+srv://…`.

Each queue has a collection. Messages have the layout of keuss' backend `mongo`, so keuss can
share a queue: see `documents.py`. Beside the queues lie

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

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote_plus

import pyarrow as pa
import pymongo
from bson import DatetimeMS
from bson.regex import Regex
from pymongo import IndexModel, MongoClient, ReadPreference, UpdateMany, UpdateOne, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.cursor import Cursor
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

from spark_queue.errors import (
    AccessDenied,
    NotAQueue,
    OptionError,
    PoolExhausted,
    StoreError,
    StoreUnavailable,
    plural,
)
from spark_queue.fork_locks import add_lock
from spark_queue.messages.buckets import ClaimLimit, Record, is_bucket, rows_of, select_records
from spark_queue.messages.json_text import dump_json
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.masking import cause_without_secrets, is_harmless, mask, parameter_name, scrub
from spark_queue.options.queue_names import dead_letter_queue
from spark_queue.options.url import StoreUrl
from spark_queue.stores.base import PAGE_ROWS, chunked, rejected_rows_error
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.mongodb.beside import SIGNALS, STATS, Beside, check_places
from spark_queue.stores.mongodb.bson_json import CODEC, from_bson
from spark_queue.stores.mongodb.counting import FEW_PLACES, Aside, QueuePlace, SizeCounter
from spark_queue.stores.mongodb.documents import (
    BUCKET_IDS,
    BUCKETS_INDEX,
    DUE,
    DUPLICATE_KEY,
    FENCED,
    FREE,
    HELD_BY_OTHERS,
    HELD_BY_US,
    HELD_FIELDS,
    HELD_INDEX,
    HELD_ORDER,
    ID_HINT,
    INDEXES,
    NO_END_DATE,
    OLD_INDEXES,
    READY_INDEX,
    SOUND_DOCUMENT,
    UNSEEN_TAGS,
    WAITING_ORDER,
    Document,
    DocumentPage,
    DocumentPlace,
    DocumentState,
    Filter,
    add_tries,
    as_records,
    claim_update,
    commit_update,
    count_expression,
    count_messages,
    count_of,
    dead_letter_headers,
    due_by,
    filter_after,
    free_state,
    held_by,
    history_state,
    history_update,
    id_filter,
    insert,
    insert_new,
    lease_end,
    moved_document,
    pages,
    release_update,
    spend_documents,
    to_date,
    to_documents,
)
from spark_queue.stores.mongodb.forms import Form, queue_form
from spark_queue.stores.mongodb.keys import filters_greater, find_other_texts, id_of, key_of, sort_key
from spark_queue.stores.mongodb.limits import MongoLimits
from spark_queue.stores.mongodb.marks import HINTED_AGE, Mark, Marks, is_missing_index
from spark_queue.stores.mongodb.oversize import MAX_LETTER_BYTES, fit_letter, fits
from spark_queue.stores.mongodb.places import PLACES, inherit_places
from spark_queue.stores.mongodb.sampling import sample_keys
from spark_queue.stores.mongodb.scanning import QueueIndexes, scan_documents
from spark_queue.stores.mongodb.signals import MongoSubscription
from spark_queue.stores.mongodb.stages import INTERRUPTED, OWN_PREFIX, STAGED, Stages
from spark_queue.stores.services.listener import Subscription
from spark_queue.stores.services.signals import SignallingStore
from spark_queue.stores.spans import WHOLE, Sample, Span
from spark_queue.stores.support.budget import current_budget, spend
from spark_queue.stores.support.claiming import ClaimRequest, Shares
from spark_queue.stores.support.counters import Counts, Statistics
from spark_queue.stores.support.damaged import EMPTY_PAGE, MAX_NEVER_DUE, Records
from spark_queue.stores.support.scan import Scanned, ScanStep
from spark_queue.stores.support.summary import Summary, SummaryRequest
from spark_queue.stores.types import (
    Claim,
    Commit,
    Condition,
    DeadLetterInfo,
    Finding,
    ForeignData,
    HandOut,
    RawNote,
    Reservation,
    Rollback,
    Selection,
    Sizes,
    Staged,
    View,
    seen_tag,
    unseen_tag,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

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

#: The field `bytes` of a document in a reply: its size in BSON.
DOCUMENT_BYTES: Document = {"bytes": {"$bsonSize": "$$ROOT"}}

#: How many records a claim with a limit of bytes looks at first.
SAMPLED_RECORDS = 64

#: Notes are read as the majority of the servers has them: they cannot be rolled back later.
NOTES, MAJORITY = "notes", ReadConcern("majority")

#: A client that competes with others skips up to 2 ** MAX_SKIP_DOUBLINGS times as many messages as
#: it wants.
MAX_SKIP_DOUBLINGS = 6

#: Most bytes of the name of a collection, with that of its database.
MAX_NAMESPACE_BYTES = 255

#: Error codes of the server.
AUTHENTICATION_FAILED, UNAUTHORIZED, ATLAS_ERROR = 18, 13, 8000
MAJORITY_NOT_KNOWN_YET, QUERY_PLAN_KILLED = 134, 175

#: Error code of the server: an update would make a document too large.
DOCUMENT_TOO_LARGE = 17419

#: Error codes of a server that steps down, shuts down, is no primary, or does not reach its own
#: set: those of the specification of retryable writes. The driver knows them. It does not if a
#: write has begun and waits for the majority: its outcome is then unknown.
STATE_CHANGES = {6, 7, 89, 91, 189, 262, 9001, 10058, 10107, 11600, 11602, 13435, 13436}

#: How the driver's error begins for a server without sessions. All servers that we support have
#: sessions, but not while they are neither primary nor secondary: when a primary begins to step
#: down, or a node starts.
NO_SESSIONS = "Sessions are not supported"

#: Clients of the parent process after a fork. They must not be used here, nor closed: the parent
#: uses them.
_inherited_clients: list[MongoClient[Document]] = []


def _database_in(url: str) -> str:
    """Return the name of the database in a URL without parameters of ours.

    Raises `OptionError`, without secrets, if the URL is invalid or names none.
    """
    # parse_uri would query the DNS for a mongodb+srv:// URL. Without its prefix and its srv
    # options it is like any other URL.
    plain, _, options = url.replace("mongodb+srv://", "mongodb://", 1).partition("?")
    kept = [one for one in options.split("&") if one and not one.lower().startswith("srv")]
    if kept:
        plain += f"?{'&'.join(kept)}"
    try:
        database = parse_uri(plain)["database"]
    except (OSError, ValueError, PyMongoError) as error:
        text = ""
        if "@" not in options:  # else an apparent option may be a part of the password
            text = _find_rejected_option(kept)
            if not text and isinstance(error, ConfigurationError) and not isinstance(error, InvalidURI):
                text = scrub(str(error), url)
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
    return str(database)


def _find_rejected_option(options: Sequence[str]) -> str:
    """Return which option of a URL the driver refuses, and why; empty if it refuses none."""
    for number, one in enumerate(options):
        try:
            parse_uri(f"mongodb://host/database?{one}")
        except (OSError, ValueError, PyMongoError) as error:
            # After a secret with a raw &, the rest of the secret looks like an option.
            if (name := parameter_name(one)) and all(map(is_harmless, options[:number])):
                words = re.findall(r"\w{3,}", unquote_plus(one.partition("=")[2]))
                quotes = any(word in str(error) for word in words)
                return f"its option {name!r}: {'its value is malformed' if quotes else error}"
            return "MongoDB's driver refuses one of its options: check their names and values"
    return ""


class _BeforeClaim(NamedTuple):
    """What a claim finds: the messages of its tags, the server's time (ms), and any ready messages.

    `most`: how many records to look at in one command.
    """

    held: dict[str, int]
    now: int
    any_ready: bool
    most: int


class MongoStore(SignallingStore):
    """Queues in one database of MongoDB 4.4 or later.

    Safe to share among threads, and across a fork.
    """

    max_payload = (16 << 20) - (64 << 10)
    shrink_hint = (
        "MongoDB reuses free space, and its own command `compact` returns it to the disk: "
        "db.runCommand({compact: 'collection'})"
    )
    unsupported_payloads: ClassVar[tuple[object, ...]] = (None,)
    default_limits: ClassVar[MongoLimits] = MongoLimits()
    limits: MongoLimits
    layout_name: ClassVar[str] = "mongo"
    parameters: ClassVar[tuple[str, ...]] = ("ns", STATS, SIGNALS)
    layouts: ClassVar[Mapping[str, str]] = {
        "mongo": "spark_queue.stores.mongodb.store:MongoStore",
        "ps-mongo": "spark_queue.stores.mongodb.layouts:HistoryStore",
        "pl-mongo": "spark_queue.stores.mongodb.layouts:PipelineStore",
        "bucket-mongo-safe": "spark_queue.stores.mongodb.buckets:BucketStore",
    }

    #: The indexes of a collection of messages, and how it is marked.
    form: ClassVar[Form] = queue_form(INDEXES, OLD_INDEXES)

    # How a document holds a record: as in `documents.py`. `_rows_field` has the number of messages
    # of a bucket, `_content_field` the large content, `_id_fields` all that the record's id is made
    # of.
    _rows_field: ClassVar[str] = "rows"
    _content_field: ClassVar[str] = "payload"
    _id_fields: ClassVar[Document] = {"_id": 1}
    _held_fields: ClassVar[Document] = HELD_FIELDS
    _bucket_ids: ClassVar[Filter | Regex[str]] = BUCKET_IDS
    _key_of = staticmethod(key_of)
    _count_messages = staticmethod(count_messages)
    _to_documents = staticmethod(to_documents)

    @staticmethod
    def _id_of(document: Document) -> str:
        """Return the id of a record, from its `_id_fields`."""
        return id_of(document["_id"])

    @staticmethod
    def _moved_documents(
        document: Document, queue: str, pending_tries: int, death: DeadLetterInfo | None, now: int
    ) -> list[Document]:
        """Return the documents that a document becomes in another queue: see `moved_document`."""
        moved = moved_document(document, queue, pending_tries, death, now)
        return [moved if death is None else fit_letter(moved)]

    @staticmethod
    def _pages(documents: Iterable[Document], limit: int) -> Iterator[DocumentPage]:
        """Yield pages of up to `limit` documents, each ending early at PAGE_BYTES of payload."""
        return pages(documents, limit, lambda one: from_bson(one.get("payload")))

    @classmethod
    def resolve(cls, url: str) -> str:
        address = StoreUrl.parse(url)
        address.check_parameters(cls.layout_name, cls.parameters)
        check_places(address.parameters)
        _database_in(address.url)
        return url

    def __init__(
        self, url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
    ) -> None:
        """Connect to nothing yet. Raises `OptionError` for an invalid URL."""
        super().__init__(url, retry_timeout=retry_timeout, create=create, limits=limits)
        self._own_prefix = OWN_PREFIX  # the prefix of our own collections
        self._database_name = _database_in(self._address.url)
        self._lock: threading.Lock
        add_lock(self, "_lock")
        self._client: MongoClient[Document] | None = None
        self._pid = 0
        self._beside = Beside(self._address.parameters, self.ns, self._database)
        self._marks = Marks(self._database, self.form, self.url, self.limits)

    # --- the connection ---------------------------------------------------------------------------

    def _database(self) -> Database[Document]:
        with self._lock:
            if self._client is not None and self._pid != os.getpid():
                _inherited_clients.append(self._client)
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
        self._beside.close()

    def check_queue(self, queue: str) -> None:
        super().check_queue(queue)
        if "$" in queue or ".." in queue or queue.startswith(("system.", OWN_PREFIX, ".")) or queue.endswith("."):
            raise OptionError(
                f"{queue!r} cannot name a queue: the name of a MongoDB collection has no $, no dot at its ends, no "
                f"two dots in a row, and does not begin with 'system.', nor with {OWN_PREFIX!r}, which is taken",
                option="queue",
                queue=queue,
            )

        place = f"{self._database_name}.{self._collection_name(queue)}"
        if len(place.encode()) > MAX_NAMESPACE_BYTES:
            raise OptionError(
                f"{queue!r} cannot name a queue here: with the name of the database, its collection has "
                f"{len(place.encode())} bytes, and MongoDB allows {MAX_NAMESPACE_BYTES}",
                option="queue",
                queue=queue,
            )

    def _collection(self, queue: str, *, create: bool = False, max_age: float = HINTED_AGE) -> Collection[Document]:
        """Return the collection of a queue, whose mark was checked.

        `create` creates it, and missing indexes. `max_age`: as in `Marks.check`. Raises
        `OptionError` if the name of the queue is not allowed, and `NotAQueue`.
        """
        self.check_queue(queue)
        name = self._collection_name(queue)
        if create:
            self._marks.complete(name, queue, max_age)
        else:
            self._marks.check(name, queue, max_age)
        return self._database()[name]

    def _collection_name(self, queue: str) -> str:
        """Return the name of the collection of a queue."""
        return queue

    def _queue_fields(self, queue: str) -> Document:
        """Return the fields that name the queue of a document, if its collection holds several."""
        return {}

    def _queue_view(self, queue: str, *, create: bool = False, max_age: float = HINTED_AGE) -> Collection[Document]:
        """Return the collection of a queue, restricted to that queue: see `_collection`.

        Raises `OptionError` and `NotAQueue` as that does.
        """
        return self._collection(queue, create=create, max_age=max_age)

    def _check_is_queue(self, queue: str) -> None:
        self._collection(queue)

    def _hint(self, collection: Collection[Document], index: IndexModel) -> dict[str, Any]:
        """Return the argument that makes an operation use an index: the server may choose a scan.

        A queue that only other programs have used has none of our indexes. Reading creates none.
        A collection that does not exist gets a hint, too: see `marks.py`.
        """
        bare = self._marks.check(collection.name, collection.name) is Mark.BARE
        return {} if bare else {"hint": index.document["name"]}

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T:
        def translated(*arguments: object) -> T:
            budget = current_budget()
            limit = pymongo.timeout(max(0.001, budget.seconds_left)) if budget else nullcontext()
            with self._translate_errors(), limit:
                try:
                    return operation(*arguments)
                except OperationFailure as error:
                    if not is_missing_index(error):
                        raise
                    self._marks.expire()  # the collection is another one, or has lost its indexes
                    return operation(*arguments)

        return super()._attempt(translated, *arguments)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except PyMongoError as error:
            spend()  # perhaps the time of a look has ended
            raise self._to_store_error(error) from cause_without_secrets(error, self.url)

    def _to_store_error(self, error: PyMongoError) -> StoreError:
        """Return our error for one of the driver's."""
        shown = mask(self.url)
        text = scrub(str(error).partition(", full error:")[0].partition(", Timeout:")[0], self.url)
        code = error.code if isinstance(error, OperationFailure) else None
        if isinstance(error, WaitQueueTimeoutError):
            pool = self._database().client.options.pool_options
            return PoolExhausted(
                f"{shown}: all {pool.max_pool_size} connections of this client are in use, and none became free in "
                f"{pool.wait_queue_timeout:g} s: use fewer threads, or set a larger maxPoolSize in the URL "
                "(waitQueueTimeoutMS sets how long to wait)",
                url=shown,
            )
        if isinstance(error, BulkWriteError):  # its text quotes the documents
            first = (error.details["writeErrors"] or error.details["writeConcernErrors"])[0]
            text, code = first["errmsg"], first["code"]
        if isinstance(error, OperationFailure) and is_missing_index(error):
            self._marks.expire()
            return StoreUnavailable(f"{shown}: the indexes of the queue were dropped", url=shown)
        retryable_labels = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")
        if (
            isinstance(error, ConnectionFailure | WTimeoutError)
            or any(error.has_error_label(label) for label in retryable_labels)
            or code == DUPLICATE_KEY  # in a transaction: another client pushed the same id
            or code == MAJORITY_NOT_KNOWN_YET
            or code in STATE_CHANGES
            or (isinstance(error, ConfigurationError) and text.startswith(NO_SESSIONS))
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

    def _hello(self) -> tuple[int, bool]:
        """Return the server's time (ms), and whether it has transactions."""
        hello = self._database().client.admin.command("hello", codec_options=CODEC)
        return int(hello["localTime"]), "setName" in hello or hello.get("msg") == "isdbgrid"

    def _now(self) -> int:
        return self._hello()[0]

    def _server(self) -> str:
        return f"mongodb {self._database().client.server_info()['version']}"

    def _examine(self) -> list[Finding]:
        transactions = Finding("transactions", "good", "available")
        if not self._hello()[1]:
            transactions = Finding(
                "transactions", "worry", "none, on a standalone server: no buckets, and moves in two steps",
                "make it a replica set (one server is enough)",
            )  # fmt: skip
        self._marks.expire()
        queues = self._queues()
        unindexed = [one for one in queues if self._marks.check(self._collection_name(one), one) is Mark.BARE]
        indexes = Finding("indexes", "good", f"complete for {plural(len(queues), 'queue')}")
        if unindexed:
            shown = ", ".join(unindexed[:5]) + (f" and {len(unindexed) - 5} more" if len(unindexed) > 5 else "")
            indexes = Finding(
                "indexes", "worry", f"missing for {shown}: dropped, or only other programs have used the queue",
                "push or reserve with spark_queue once: that creates them",
            )  # fmt: skip
        return [transactions, indexes]

    # --- signals ----------------------------------------------------------------------------------

    def _send(self, queue: str, signal: int | str) -> None:
        if (redis := self._beside.redis) is not None:
            redis._send(queue, signal)
            return
        value = signal if isinstance(signal, str) else float(signal)
        with self._translate_errors():
            self._beside.signals().insert_one({"event": self.topic(queue), "message": value})

    @contextmanager
    def _open_subscription(self) -> Iterator[Subscription]:
        if (redis := self._beside.redis) is not None:
            with redis._open_subscription() as subscription:
                yield subscription
            return
        with self._translate_errors():
            signals = self._beside.signals(check=True)
            if signals.database.client.options.pool_options.max_pool_size == 1:
                raise StoreError(
                    f"{mask(self.url)}: its maxPoolSize=1 leaves no connection for signals: set 2 or more",
                    url=mask(self.url),
                )
            with closing(
                MongoSubscription(signals, self.topic(""), self._now(), self.limits.listener_heartbeat)
            ) as found:
                yield found

    # --- messages in ------------------------------------------------------------------------------

    def _push(self, queue: str, batch: pa.RecordBatch) -> int:
        collection = self._collection(queue, create=True, max_age=self.limits.insert_age)
        documents = self._checked_documents(queue, batch)
        inserted = insert(collection, documents, count=self._count_messages)
        self._marks.note_insert(collection.name, documents[-1]["_id"])
        return inserted

    def _checked_documents(self, queue: str, batch: pa.RecordBatch) -> list[Document]:
        """Return the rows as documents.

        Raises `MessageError` if MongoDB cannot keep some rows, and `StoreError` for buckets on a
        standalone server.
        """
        now, transactions = self._hello()
        if same := find_other_texts(batch.column("id")):
            raise rejected_rows_error(queue, batch, same)
        documents = self._documents(queue, batch, now)
        PLACES.add_to(documents, batch.column("id"))
        if not transactions and any(self._rows_field in one for one in documents):
            raise StoreError(
                f"{queue!r}: layout=bucket needs transactions, which a standalone MongoDB server does not have: make "
                "it a replica set (one server is enough), or use layout=single",
                queue=queue,
            )
        return documents

    def _documents(self, queue: str, batch: pa.RecordBatch, now: int) -> list[Document]:
        documents, broken_rules = self._to_documents(batch, now)
        if broken_rules:
            raise rejected_rows_error(queue, batch, broken_rules)
        marks = self._queue_fields(queue)
        return [one | marks for one in documents] if marks else documents

    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        self._check_is_queue(queue)  # a stage that cannot be published would stay
        documents = self._checked_documents(queue, batch)
        with self._killable_session() as session:
            self._stages().put(queue, stage, part, documents, session)

    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        return self._stages().publish(stages, self._hello()[1])

    def _staged(self, stage: str) -> list[Staged]:
        return self._stages().list_staged(stage)

    def _unstage(self, stage: str, keep: Sequence[str]) -> int:
        return self._stages().remove(stage, keep)

    def _stages(self) -> Stages:
        get_collection = partial(self._collection, create=True, max_age=self.limits.insert_age)
        name = self._own_prefix + STAGED
        return Stages(
            self._database(), get_collection, self._attempt, self.retry_timeout, name, self._count_messages,
            self._marks.note_insert, self.limits,
        )  # fmt: skip

    # --- reservations -----------------------------------------------------------------------------

    def _claim(self, queue: str, request: ClaimRequest) -> Claim:
        collection = self._queue_view(queue)
        before = self._look_before_claim(queue, collection, request)
        if before.held:
            return Claim(request.held_rows(before.held), already_held=True)
        shares, collisions, due = Shares(request, 0), 0, due_by(min(before.now, request.before))
        fields = self._id_fields if request.bytes is None else {**self._id_fields, **DOCUMENT_BYTES}
        wanted = min(request.rows, before.most)  # each record has a message or more
        begun = False
        while wanted and before.any_ready:
            # A client that has lost messages to others skips some: most likely they are taken, too.
            # Otherwise all clients would compete for the same messages again and again.
            skip = random.randrange(wanted << min(collisions, MAX_SKIP_DOUBLINGS)) if collisions else 0
            by = self._hint(collection, READY_INDEX)
            cursor = collection.find(due, fields, skip=skip, limit=wanted, batch_size=wanted, **by)
            records = [(one["_id"], self._id_of(one), one.get("bytes", 0)) for one in cursor.sort(WAITING_ORDER)]
            at_end = len(records) < wanted and not skip
            if not begun:
                shares, begun = Shares(request, self._count_ready(collection, due, request, records, at_end)), True
            parts = shares.cut(records)
            keys = [key for part in parts.values() for key in part]
            if not keys and skip:
                collisions = 0  # the skip went beyond the end
                continue
            if not keys:
                break
            self._queue_view(queue, create=True)  # only now: an empty reserve creates no queue
            try:
                taken = self._hold(queue, due, before.now, request, parts)
            except BulkWriteError as error:
                full = {one["code"] for one in error.details["writeErrors"]} == {DOCUMENT_TOO_LARGE}
                if not (full and self._bury_full_documents(queue, {**due, "_id": {"$in": keys}})):
                    raise
                return self._claim(queue, request)
            if taken < len(keys):
                # What another client has just reserved does not match: another round follows.
                collisions += 1
                shares.correct(request.held_rows(self._count_held(collection, request)))
            elif shares.is_complete or len(keys) < len(records):
                break
            if at_end:
                break
            wanted = min(shares.left, before.most)
        return shares.claim()

    def _look_before_claim(self, queue: str, collection: Collection[Document], request: ClaimRequest) -> _BeforeClaim:
        """Return what the tags of a claim hold, and what the first messages of the queue are.

        With a limit of bytes, it estimates by the first records how many to look at for it. The
        server reads a document for its size, and would read thousands of large ones of which few
        fit.
        """
        first: list[Document] = [
            {"$match": {**self._queue_fields(queue), **due_by(MAX_TIME_MS)}},
            {"$sort": dict(WAITING_ORDER)},
            {"$limit": 1 if request.bytes is None else SAMPLED_RECORDS},
            {"$group": {"_id": None, "due": {"$min": "$mature"}, "bytes": {"$avg": {"$bsonSize": "$$ROOT"}}}},
            {"$addFields": {"now": "$$NOW"}},
        ]
        steps = [*self._held_steps(request), {"$unionWith": {"coll": collection.name, "pipeline": first}}]
        found = list(collection.aggregate(steps, **self._hint(collection, HELD_INDEX)))
        held = {one["_id"]: int(one["rows"]) for one in found if "now" not in one}
        queued = next((one for one in found if "now" in one), None)
        if queued is None:
            return _BeforeClaim(held, 0, False, 0)
        most, now = self.limits.command_chunk, int(queued["now"])
        if request.bytes is not None:
            fitting = 2 * request.bytes // (int(queued["bytes"]) + 1)
            most = SAMPLED_RECORDS if request.rows <= SAMPLED_RECORDS else max(SAMPLED_RECORDS, min(most, fitting))
        return _BeforeClaim(held, now, int(queued["due"]) <= min(now, request.before), most)

    def _held_steps(self, request: ClaimRequest) -> list[Document]:
        """Return a pipeline that counts the messages of each tag of a claim."""
        query = held_by(request.tag) if request.partitions > 1 else {**FENCED, "_tag": request.tag_of(0)}
        return [{"$match": query}, {"$group": {"_id": "$_tag", "rows": {"$sum": count_expression(self._rows_field)}}}]

    def _count_held(self, collection: Collection[Document], request: ClaimRequest) -> dict[str, int]:
        found = collection.aggregate(self._held_steps(request), **self._hint(collection, HELD_INDEX))
        return {one["_id"]: int(one["rows"]) for one in found}

    def _count_ready(
        self,
        collection: Collection[Document],
        due: Filter,
        request: ClaimRequest,
        records: Sequence[tuple[Any, str, int]],
        at_end: bool,
    ) -> int:
        """Return how many messages several partitions may share, from the first ready records."""
        if request.partitions == 1:
            return 0
        ready = sum(rows_of(id) for _, id, _ in records)
        if at_end or ready >= request.rows:
            return ready
        steps: list[Document] = [
            {"$match": due},
            {"$sort": dict(WAITING_ORDER)},
            {"$limit": request.rows},
            {"$group": {"_id": None, "rows": {"$sum": count_expression(self._rows_field)}}},
        ]
        found = list(collection.aggregate(steps, **self._hint(collection, READY_INDEX)))
        return int(found[0]["rows"]) if found else ready

    def _hold(self, queue: str, due: Filter, now: int, request: ClaimRequest, parts: Mapping[int, list[Any]]) -> int:
        """Reserve records by their keys for partitions, with one command; return their number.

        Raises `OptionError` if the name of the queue is not allowed.
        """
        ours, until = self._queue_fields(queue), lease_end(now, request.lease)
        changes = [
            UpdateMany(
                {**ours, **due, "_id": {"$in": keys}},
                claim_update(request.tag_of(partition), DatetimeMS(now), until),
                **ID_HINT,
            )
            for partition, keys in parts.items()
        ]
        with self._killable_session() as session:
            return int(self._collection(queue).bulk_write(changes, session=session).modified_count)

    def _bury_full_documents(self, queue: str, query: Filter) -> int:
        """Make dead letters of documents that have no room for a reservation; return their number.

        Only other programs insert such documents. Raises `OptionError` if the name of the
        dead-letter queue is not allowed.
        """
        full = {"$and": [query, {"$expr": {"$gt": [{"$bsonSize": "$$ROOT"}, MAX_LETTER_BYTES]}}]}
        found = self._queue_view(queue).find(full, self._id_fields, **ID_HINT)
        selection = Selection(ids=[self._id_of(one) for one in found])
        reason = "its document has no room for the fields of a reservation: MongoDB's limit is 16 MiB"
        dead = dead_letter_queue(queue)
        moved = self._move(queue, dead, selection, DeadLetterInfo(reason)) if selection.ids else 0
        if moved:
            self.count(queue, deadletter=moved)
            self.count(dead, put=moved)
            log.warning("%s of queue %s too large to be reserved: moved to %s", plural(moved, "message"), queue, dead)
        return moved

    def _extra_messages(self, queue: Collection[Document], query: Filter, limit: int | None = None) -> int:
        """Return how many more messages than records match a filter: buckets hold many.

        With a `limit`, it counts until it has found that number.
        """
        found = 0
        for one in self._find_buckets(queue, query):
            found += count_of(one[self._rows_field]) - 1
            if limit is not None and found >= limit:
                break
        return found

    def _find_buckets(self, queue: Collection[Document], query: Filter) -> Cursor[Document]:
        """Yield the buckets that match a filter: `_id`, and the number of messages of each."""
        buckets = {"$and": [query, {self._rows_field: {"$exists": True}}]}
        return queue.find(buckets, {self._rows_field: 1}, **self._hint(queue, BUCKETS_INDEX))

    @contextmanager
    def _killable_session(self) -> Iterator[ClientSession]:
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
                time.sleep(self.limits.kill_delay)
                raise

    def _ready(self, queue: str, limit: int, before: int) -> int:
        collection = self._queue_view(queue)
        due = due_by(min(self._now(), before))
        if not limit:
            return 0
        ready = collection.count_documents(due, limit=limit, **self._hint(collection, READY_INDEX))
        return min(limit, ready + self._extra_messages(collection, due, limit)) if ready < limit else limit

    def _scan_free(self, queue: str, after: DocumentPlace | None, rows: int) -> Records:
        collection, now = self._queue_view(queue), self._now()
        query: Document = {"$and": [FREE.query, {"mature": {"$lte": DatetimeMS(now)}}]}
        if after is not None:
            query["$and"].append(filter_after("mature", after))
        cursor = collection.find(query, limit=rows, batch_size=rows, **self._hint(collection, READY_INDEX))
        return self._read_page(queue, cursor.sort(WAITING_ORDER), rows, "mature")

    def _read_page(
        self,
        queue: str,
        cursor: Cursor[Document],
        rows: int,
        field: str,
        load_document: Callable[[Document], Document] | None = None,
    ) -> Records:
        """Read the first page of a cursor, which is in the order of a field, `_seq` and `_id`."""
        with cursor as documents:
            page = next(self._pages(spend_documents(documents), rows), None)
        if page is None:
            return EMPTY_PAGE
        last = page.documents[-1]
        place = DocumentPlace(last.get(field), last.get("_seq"), last["_id"], id_of(last["_id"]))
        return as_records(queue, page, load_document)._replace(after=place)

    def _replace_records(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        now, transactions = self._hello()
        collection = self._queue_view(queue, create=True, max_age=self.limits.insert_age)
        if tag is None:
            self._free_unseen(collection, now)
        keys = [self._key_of(one.id) for one in records]
        state = free_state(now).query if tag is None else {**FENCED, "_tag": tag}
        documents = self._documents(queue, batch, now)
        with self._transaction(transactions) as session:
            query = {**state, "_id": {"$in": keys}}
            old = list(collection.find(query, {self._content_field: 0}, session=session, **ID_HINT))
            if {self._id_of(one) for one in old} != {one.id for one in records}:
                return False
            inherit_places(documents, batch.column("id").to_pylist(), old)
            for one in documents:
                # After an expired lease, the tries of the old record include its failure.
                one["tries"] = old[0].get("tries", 0)
                if tag is not None:
                    held = {name: old[0][name] for name in ("mature", "reserved", "_tag", "_reserved")}
                    one |= {"_mature": one["mature"], **held}
            new_keys = [one["_id"] for one in documents]
            others = {"_id": {"$in": [one for one in new_keys if one not in keys]}, "processed": None}
            if collection.find_one(others, {"_id": 1}, session=session, **ID_HINT):
                return False
            if session is None:  # for a moment both exist, rather than none
                insert(self._collection(queue), documents, count=self._count_messages)
                return bool(collection.delete_many(query, **ID_HINT).deleted_count == len(keys))
            collection.delete_many(query, session=session, **ID_HINT)  # first: old and new may share an id
            insert_new(self._collection(queue), new_keys, documents, session)
            return True

    def _page(self, queue: str, tag: str, after: DocumentPlace | None, rows: int) -> Records:
        collection = self._queue_view(queue)
        query: Document = {**FENCED, "_tag": tag}
        if after is not None:
            query |= filter_after("_mature", after)

        def load_document(one: Document) -> Document:
            return collection.find_one({"_id": {"$eq": one["_id"]}}, **ID_HINT) or one

        by = self._hint(collection, HELD_INDEX)
        cursor = collection.find(query, self._held_fields, limit=rows, batch_size=rows, **by)
        return self._read_page(queue, cursor.sort(HELD_ORDER), rows, "_mature", load_document)

    def _record_sizes(self, queue: str, tag: str, limit: int) -> list[tuple[str, int]]:
        collection = self._queue_view(queue)
        by, fields = self._hint(collection, HELD_INDEX), {**self._id_fields, **DOCUMENT_BYTES}
        cursor = collection.find({**FENCED, "_tag": tag}, fields, limit=limit, batch_size=limit, **by)
        return [(self._id_of(one), one["bytes"]) for one in cursor.sort(HELD_ORDER)]

    def _last_due(self, queue: str, tag: str) -> int | None:
        collection = self._queue_view(queue)
        query, by = {**FENCED, "_tag": tag, "_mature": {"$type": "date"}}, self._hint(collection, HELD_INDEX)
        cursor = collection.find(query, {"_mature": 1}, limit=1, **by)
        for one in cursor.sort([("_mature", -1), ("_id", -1)]):
            return int(one["_mature"])
        return None

    def _renew(self, queue: str, tag: str, lease: int | None) -> int:
        collection = self._queue_view(queue)
        until = lease_end(self._now(), lease)
        by = self._hint(collection, HELD_INDEX)
        renewed = collection.update_many(held_by(tag), {"$set": {"mature": until}}, **by).matched_count
        return renewed + self._extra_messages(collection, held_by(tag)) if renewed else 0

    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int:
        held, history = HELD_BY_US._replace(query=held_by(tag)), self._history(history)
        if not history:
            return self._apply(queue, held, ids, None)
        update = history_update(self._now(), history, tag, outcome, {"tries": add_tries(-1)})
        return self._apply(queue, held, ids, update)

    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, include_endless: bool
    ) -> int:
        query = held_by(tag) if include_endless else {"$and": [held_by(tag), {"mature": {"$lt": NO_END_DATE}}]}
        due = DUE if delay is None else to_date(self._now() + delay)
        return self._apply(queue, HELD_BY_US._replace(query=query), ids, release_update(due, failed=failed))

    def _transfer(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int:
        # A message that is already transferred does not match again.
        query = {"$and": [held_by(tag), {"_tag": {"$ne": to}}]}
        change = {"$set": {"_tag": to, "mature": lease_end(self._now(), lease)}}
        return self._apply(queue, HELD_BY_US._replace(query=query), ids, change)

    def _settle_and_hand_out(
        self, queue: str, tag: str, records: Sequence[Record], how: Commit | Rollback, next: HandOut
    ) -> tuple[int, int]:
        change: Document | list[Document]
        if isinstance(how, Rollback):
            due = DUE if how.delay is None else to_date(self._now() + how.delay)
            change = release_update(due, failed=how.failed)
        elif history := self._history(how.history):
            change = history_update(self._now(), history, tag, how.outcome, {"tries": add_tries(-1)})
        else:
            change = commit_update()
        ours, seen = self._queue_fields(queue), seen_tag(next.tag)
        settled = {**ours, **held_by(tag), "_id": {"$in": [self._key_of(one.id) for one in records]}}
        handed_out: Document = {"_id": {"$eq": self._key_of(next.record.id)}}
        unseen = {**ours, **held_by(unseen_tag(next.tag)), **handed_out}
        transfer = {"$set": {"_tag": seen}}
        # Two updates are one command, and so one round trip; an update and a removal would be two.
        changes = [UpdateMany(settled, change, **ID_HINT), UpdateMany(unseen, transfer, **ID_HINT)]
        changed = self._collection(queue).bulk_write(changes).modified_count
        if changed == len(records) + 1:
            return len(records), 1
        done = self._collection(queue).count_documents({**ours, **FENCED, **handed_out, "_tag": seen}, **ID_HINT)
        return max(0, changed - done), done

    def _history(self, history: int) -> int:
        """Return for how many ms the layout keeps messages that are committed with `history`."""
        return history

    def _free_unseen(self, queue: Collection[Document], now: int) -> None:
        """Free messages that were reserved ahead, and whose lease has ended.

        An operation on free messages takes the tries of other expired leases as they are.
        """
        expired = {**FENCED, "_tag": UNSEEN_TAGS, "mature": {"$lte": DatetimeMS(now)}}
        queue.update_many(expired, release_update(DUE, failed=False), **self._hint(queue, HELD_INDEX))

    def _apply(
        self, queue: str, state: DocumentState, ids: Sequence[str] | None, update: Document | list[Document] | None
    ) -> int:
        """Update the records in a state (only `ids`, if given); return the number of messages.

        Without an `update`, remove them. Raises `OptionError` if the name of the queue is not
        allowed.

        Buckets come first, by their ids, so that their number of messages is known. If some are
        lost in between, each counts as one message. The number is then too low, so the holder
        learns that it has lost messages.
        """
        # Without ids, a hint protects other collections; with a tag, the filter does.
        protected = ids is None or state.hint_index is HELD_INDEX
        collection = self._queue_view(queue, max_age=HINTED_AGE if protected else 0)

        def act(query: Filter, by: dict[str, Any]) -> int:
            if update is None:
                return collection.delete_many(query, **by).deleted_count
            return collection.update_many(query, update, **by).modified_count

        done = 0
        may_have_buckets = self._has_buckets(collection) if ids is None else any(map(is_bucket, ids))
        for query, by in self._filters_for(collection, state, ids):
            if may_have_buckets and (buckets := list(self._find_buckets(collection, query))):
                names = [one["_id"] for one in buckets]
                acted = act({"$and": [query, {"_id": {"$in": names}}]}, ID_HINT)
                done += sum(count_of(one[self._rows_field]) for one in buckets) if acted == len(names) else acted
            done += act(query, by)
        return done

    def _has_buckets(self, queue: Collection[Document]) -> bool:
        """Return whether any record of the queue is a bucket."""
        return queue.find_one({"_id": self._bucket_ids}, {"_id": 1}, **ID_HINT) is not None

    def _filters_for(
        self, queue: Collection[Document], state: DocumentState, ids: Sequence[str] | None, size: int | None = None
    ) -> Iterator[tuple[Document, dict[str, Any]]]:
        """Yield filters for the messages in a state, each with the index to use.

        With `ids`, there is a filter for each `size` of them (by default, `command_chunk`).
        """
        if ids is None:
            yield dict(state.query), self._hint(queue, state.hint_index)
        else:
            for part in chunked([self._key_of(id) for id in ids], size or self.limits.command_chunk):
                yield {**state.query, "_id": {"$in": part}}, ID_HINT

    def _reservations(self, queue: str, tag: str) -> list[Reservation]:
        collection = self._queue_view(queue)
        query = held_by(tag) if tag else {**FENCED, "_tag": {"$type": "string"}}
        group = {"_id": "$_tag", "rows": {"$sum": count_expression(self._rows_field)}, "until": {"$max": "$mature"}}
        steps = [{"$match": query}, {"$group": group}, {"$sort": {"_id": 1}}]
        return [
            Reservation(one["_id"], int(one["rows"]), None if one["until"] >= NO_END_DATE else int(one["until"]))
            for one in collection.aggregate(steps, **self._hint(collection, HELD_INDEX))
        ]

    # --- between queues ---------------------------------------------------------------------------

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        if selection.limit == 0:
            return 0
        # The target gets its indexes now: a transaction cannot create them.
        protected = selection.tag is not None or selection.ids is None
        source = self._queue_view(queue, max_age=HINTED_AGE if protected else 0)
        target = self._collection(to, create=True, max_age=self.limits.insert_age)
        now, transactions = self._hello()
        if selection.tag is None:
            self._free_unseen(source, now)
        state, moving = self._find_moving(source, selection, now, to_dead_letters=dead_letter is not None)
        update: list[Document] = []
        if dead_letter is not None and dead_letter.history:
            changes = {
                "tries": add_tries(dead_letter.failed - state.pending_tries),
                "hdrs": dead_letter_headers(queue, state.pending_tries, dead_letter, now),
                "_mature": DUE,
            }
            update = history_update(now, dead_letter.history, selection.tag, "dead", changes)

        def transfer(part: list[Any]) -> tuple[int, list[Any]]:
            """Move the first of these; return the number of messages moved, and the rest."""
            with self._transaction(transactions) as session:
                query = {**state.query, "_id": {"$in": part}}
                with source.find(query, session=session, **ID_HINT).sort("_id", 1) as cursor:
                    documents = next(
                        (page.documents for page in self._pages(cursor, self.limits.transaction_chunk)), []
                    )
                copied = [one["_id"] for one in documents]
                new_documents = [
                    new
                    for one in documents
                    for new in self._moved_documents(one, queue, state.pending_tries, dead_letter, now)
                ]
                if session is None:
                    insert(target, new_documents, count=self._count_messages)
                else:
                    new_keys = [one["_id"] for one in new_documents]
                    insert_new(target, new_keys, new_documents, session, self._count_messages)
                if copied:
                    self._marks.note_insert(target.name, copied[-1])
                removed = 0
                if update:  # the history has no room for one that is too large
                    large = [one["_id"] for one in documents if not fits(one)]
                    query["_id"] = {"$in": large}
                    removed = source.delete_many(query, session=session, **ID_HINT).deleted_count if large else 0
                query["_id"] = {"$in": copied}  # delete only copied messages
                if update:
                    removed += source.update_many(query, update, session=session, **ID_HINT).modified_count
                else:
                    removed += source.delete_many(query, session=session, **ID_HINT).deleted_count
                moved = self._count_messages(copied, documents) if removed == len(copied) else removed
            if copied:  # again: a check within the transaction has not seen them
                self._marks.note_insert(target.name, copied[-1])
            return moved, [id for id in part if documents and sort_key(id) > sort_key(documents[-1]["_id"])]

        moved = 0
        for part in chunked(moving, self.limits.transaction_chunk):
            left = part
            while left:
                number, left = self._attempt(transfer, left)
                moved += number
        return moved

    def _find_moving(
        self, collection: Collection[Document], selection: Selection, now: int, *, to_dead_letters: bool
    ) -> tuple[DocumentState, list[Any]]:
        """Return the state of the messages to move, and their `_id`, in order if limited."""
        state = free_state(now) if selection.tag is None else HELD_BY_US._replace(query=held_by(selection.tag))
        if to_dead_letters:  # the next read makes a damaged message a dead letter
            state = state._replace(query={"$and": [state.query, SOUND_DOCUMENT]})
        if selection.min_tries:
            tries = {"$gte": selection.min_tries + state.pending_tries}
            state = state._replace(query={**state.query, "tries": tries})
        moving: list[Any] = []
        chunk = self.limits.command_chunk if selection.limit is None or not selection.ids else len(selection.ids)
        for query, by in self._filters_for(collection, state, selection.ids, chunk):
            cursor = collection.find(query, self._id_fields, **by)
            if selection.limit is None:
                moving += [one["_id"] for one in cursor]
            else:
                cursor = cursor.sort(state.order).limit(selection.limit)
                records = ((one["_id"], self._id_of(one), 0) for one in cursor)
                moving += select_records(records, ClaimLimit(selection.limit, selection.limit)).keys
        return state, moving

    @contextmanager
    def _transaction(self, transactions: bool) -> Iterator[ClientSession | None]:
        """Yield the session of a transaction; `None` if the server has none."""
        if not transactions:
            yield None
            return
        with (
            self._database().client.start_session() as session,
            session.start_transaction(read_concern=ReadConcern("snapshot")),
        ):
            yield session

    # --- statistics and pause ---------------------------------------------------------------------

    def _count(self, counts: Counts) -> None:
        with self._translate_errors():
            queues = [one for one in counts if not self._is_foreign(one, pushed=bool(counts[one].get("put")))]
        updates = []
        for queue in queues:
            acts = counts[queue]
            change: Document = {"$setOnInsert": {"ns": self.ns, "name": queue, "opts": {}}}
            if acts:
                change["$inc"] = {f"counters.{act}": number for act, number in acts.items()}
            updates.append(UpdateOne({"_id": self._statistics_id(queue)}, change, upsert=True))
        if updates:
            with self._translate_errors():
                self._beside.statistics(WriteConcern(w=1)).bulk_write(updates, ordered=False)

    def _statistics(self, queues: Sequence[str] | None) -> dict[str, Statistics]:
        if queues is not None and len(queues) == 1:
            self._check_is_queue(queues[0])  # refused, as by all operations; of several, it is left out
        prefix = self._statistics_id("")
        query: Document = {"_id": {"$gt": prefix, "$lt": f"{prefix}\U0010ffff"}}
        if queues is not None:
            query = {"_id": {"$in": list(map(self._statistics_id, queues))}}
        found = self._beside.statistics().find(query)
        by_queue = {
            one["_id"].removeprefix(prefix): Statistics.from_counts(one.get("counters", {}), bool(one.get("paused")))
            for one in found
        }
        foreign = self._find_foreign(by_queue) if by_queue and (queues is None or len(queues) > 1) else ()
        return {name: one for name, one in by_queue.items() if name not in foreign}

    def _set_paused(self, queue: str, paused: bool) -> None:
        change = {"$set": {"paused": paused}, "$setOnInsert": {"ns": self.ns, "name": queue, "opts": {}}}
        self._beside.statistics().update_one({"_id": self._statistics_id(queue)}, change, upsert=True)

    def _delete_statistics(self, queue: str) -> None:
        self._beside.statistics().delete_one({"_id": self._statistics_id(queue)})

    def _statistics_id(self, queue: str) -> str:
        """Return the `_id` of a queue's statistics."""
        return f"keuss:stats:{self.ns}:{queue}"

    # --- notes ------------------------------------------------------------------------------------

    def _note(self, key: str) -> RawNote | None:
        found = self._notes_collection().find_one({"_id": key})
        return None if found is None else _to_raw_note(found)

    def _notes_of(self, keys: Sequence[str]) -> dict[str, RawNote]:
        found = self._notes_collection().find({"_id": {"$in": list(keys)}})
        return {one["_id"]: _to_raw_note(one) for one in found}

    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        notes, query = self._database()[self._own_prefix + NOTES], {"_id": key, "version": version}
        if value is None:
            return notes.delete_one(query).deleted_count == 1
        text = dump_json(value).decode()  # BSON forbids some names that JSON allows
        change = {"$set": {"value": text}, "$inc": {"version": 1}, "$currentDate": {"written": True}}
        try:
            done = notes.update_one(query, change, upsert=not version)
        except DuplicateKeyError:
            return False
        return bool(done.modified_count or done.upserted_id)

    def _notes(self, prefix: str) -> dict[str, RawNote]:
        query = {"_id": {"$gte": prefix, "$lt": f"{prefix}\U0010ffff"}}
        return {one["_id"]: _to_raw_note(one) for one in self._notes_collection().find(query)}

    def _notes_collection(self) -> Collection[Document]:
        return self._database().get_collection(self._own_prefix + NOTES, read_concern=MAJORITY)

    # --- reading ----------------------------------------------------------------------------------

    def _never_due(self, queue: str) -> list[str]:
        collection = self._queue_view(queue)
        query = {"processed": None, "mature": {"$not": {"$type": "date"}}}
        by = self._hint(collection, READY_INDEX)
        cursor = collection.find(query, self._id_fields | {"_sid": 1}, limit=MAX_NEVER_DUE, **by)
        return [one.get("_sid") or self._id_of(one) for one in cursor]

    def _sizes(self, queues: Sequence[str], limit: int | None) -> dict[str, Sizes]:
        for queue in queues:
            self.check_queue(queue)
        places = self._find_places(queues)
        first = next((queue for queue, place in places.items() if place.exists), None)
        hint = {} if first is None else self._hint(self._collection(first), READY_INDEX)
        return SizeCounter(self._database(), self._now(), limit, self._rows_field).count(places, **hint)

    def _summary(self, request: SummaryRequest) -> Summary:
        for queue in request.places:
            self.check_queue(queue)
        now, paused = self._read_flags(request.queues)
        counter = SizeCounter(self._database(), now, request.limit, self._rows_field)
        notes = Aside(self._own_prefix + NOTES, request.notes)
        if len(request.places) > FEW_PLACES:  # most dead-letter queues do not exist: a list is worth its time
            sizes = counter.count(self._find_places(request.places), aside=notes)
        else:
            places = {one: QueuePlace(self._collection_name(one), self._queue_fields(one)) for one in request.places}
            sizes = counter.count(places, aside=notes)
            asked = [one for one in request.places if one in request.queues or sizes[one].total]
            unknown = [one for one in asked if not self._marks.is_known(places[one].collection)]
            refused = set(unknown).difference(self._find_places(unknown, listed=True))
            sizes = {queue: one for queue, one in sizes.items() if queue not in refused}
        return Summary(sizes, paused, {one["_id"]: _to_raw_note(one) for one in counter.found_aside})

    def _read_flags(self, queues: Sequence[str]) -> tuple[int, dict[str, bool]]:
        """Return the server's time (ms), and whether each of these queues is paused.

        Queues without statistics are left out. Mostly it takes one command: the statistics of any
        queue are on the same server.
        """
        ids = {self._statistics_id(queue): queue for queue in queues}
        statistics = self._beside.statistics().with_options(codec_options=CODEC)
        any_one: Document = {"coll": statistics.name, "pipeline": [{"$limit": 1}, {"$project": {"paused": 1}}]}
        steps: list[Document] = [
            {"$match": {"_id": {"$in": list(ids)}}},
            {"$project": {"paused": 1}},
            {"$unionWith": any_one},
            {"$addFields": {"now": "$$NOW"}},
        ]
        found = list(statistics.aggregate(steps))
        same_server = statistics.database.client is self._database().client
        now = int(found[0]["now"]) if found and same_server else self._now()
        return now, {ids[one["_id"]]: bool(one.get("paused")) for one in found if one["_id"] in ids}

    def _find_places(self, queues: Sequence[str], *, listed: bool = False) -> dict[str, QueuePlace]:
        """Return where each of these queues is, or would be. Data of other programs is left out.

        `listed`: list the collections also for a single queue.
        """
        named = {queue: QueuePlace(self._collection_name(queue), self._queue_fields(queue)) for queue in queues}
        if len(queues) < 2 and not (queues and listed):
            return {} if queues and self._is_foreign(queues[0]) else named
        names = {one.collection for one in named.values()}
        existing = self._marks.list_collections(names if len(names) <= 4 * self.limits.queues_chunk else None)
        # A list refuses a queue that is being created, too.
        found = {name for name, is_queue in existing.items() if name in names and not is_queue}
        foreign = {name for name in found if self._is_refused(name)}
        return {
            queue: place._replace(exists=place.collection in existing)
            for queue, place in named.items()
            if place.collection not in foreign
        }

    def _is_refused(self, collection: str) -> bool:
        try:
            self._marks.read(collection, collection)
        except NotAQueue:
            return True
        return False

    def _next_mature(self, queue: str) -> int | None:
        collection = self._queue_view(queue)
        steps: list[Document] = [
            {"$match": due_by(MAX_TIME_MS)},
            {"$sort": dict(WAITING_ORDER)},
            {"$limit": 1},
            {"$project": {"_id": 0, "mature": 1, "now": "$$NOW"}},  # a waiting client asks often: one round trip
        ]
        for first in collection.aggregate(steps, **self._hint(collection, READY_INDEX)):
            return None if first["mature"] >= NO_END_DATE else int(first["mature"]) - int(first["now"])
        return None

    def _scan(self, step: ScanStep) -> Scanned:
        collection = self._queue_view(step.queue)
        queue = QueueIndexes(
            collection, self._queue_fields(step.queue), bool(self._hint(collection, READY_INDEX)), self._rows_field,
            self._id_of, self._key_of, partial(self._has_buckets, collection), self._pages,
        )  # fmt: skip
        return scan_documents(queue, step, self._now() if step.view == "history" else 0)

    def _peek(
        self, queue: str, where: Sequence[Condition], view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        states = (FREE, HELD_BY_US, HELD_BY_OTHERS) if view == "messages" else (history_state(self.now()),)
        ids = [id_filter(one) for one in where if one.column == "id"]  # the same in every state
        # In the order of `_id`, which never changes: no message is returned twice. In pages, since
        # the caller may be slow.
        query = {"$and": [{"$or": [state.query_with(where) for state in states]}, *ids]}
        yield from self._read_pages(lambda after: self._page_by_id(queue, query, after, rows, span))

    def _sample(self, queue: str, view: View, size: int) -> Sample:
        collection = self._queue_view(queue)
        if view == "messages" and self._has_buckets(collection):
            living = {"processed": None, self._rows_field: {"$exists": True}}
            if collection.find_one(living, {"_id": 1}, **self._hint(collection, BUCKETS_INDEX)) is not None:
                return Sample()
        query = history_state(self._now()).query if view == "history" else {"processed": None}
        by = self._hint(collection, READY_INDEX)
        return sample_keys(
            collection,
            self._collection(queue),
            {**self._queue_fields(queue), **query},
            size,
            self.limits.index_walk,
            **by,
        )

    def _page_by_id(
        self, queue: str, query: Filter, after: DocumentPlace | None, rows: int, span: Span = WHOLE
    ) -> Records:
        """Return up to `rows` records of a span in the order of `_id`, that follow `after`.

        The page ends early at PAGE_BYTES. Raises `OptionError` if the name of the queue is not
        allowed.
        """
        if after is not None:
            query = {"$and": [query, {"$or": filters_greater("_id", after.key)}]}
        # Bounds of the index hold for keys of all types; those of a filter, for one type only.
        ends: Document = {} if span.high is None else {"max": {"_id": span.high}}
        if span.low is not None:
            ends["min"] = {"_id": span.low if after is None else after.key}
        cursor = self._queue_view(queue).find(query, limit=rows, batch_size=rows, **ID_HINT, **ends)
        return self._read_page(queue, cursor.sort("_id", 1), rows, "_id")

    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        query: Document = {"_id": self._bucket_ids if id is None else self._key_of(id), "processed": None}
        return self._read_pages(lambda after: self._page_by_id(queue, query, after, PAGE_ROWS))

    def _queues(self) -> list[str]:
        return [name for name, is_queue in self._marks.list_collections().items() if is_queue]

    def exists(self, queue: str) -> bool:
        """Return whether `queues` lists this queue: an empty one of keuss, too."""
        return super().exists(queue) or self._has_collection(queue)

    def _has_collection(self, queue: str) -> bool:
        return self._attempt(self._marks.read, queue, queue) is not Mark.ABSENT

    def _inspect_foreign(self, queue: str) -> ForeignData:
        return self._marks.inspect(self._collection_name(queue), queue)

    def _adopt(self, queue: str) -> None:
        self._marks.create_indexes(self._collection_name(queue))

    def _find_foreign(self, queues: Iterable[str]) -> set[str]:
        """Return the names, among these, of collections that are no queues."""
        names = list(queues)
        collections = self._marks.list_collections(names if len(names) <= self.limits.queues_chunk else None)
        return {name for name in names if not collections.get(name, True)}

    def _is_foreign(self, queue: str, *, pushed: bool = False) -> bool:
        try:
            if pushed:
                self._marks.check_inserted(self._collection_name(queue), queue)
            self._check_is_queue(queue)
        except OptionError:  # or its name is not allowed
            return True
        return False

    # --- housekeeping -----------------------------------------------------------------------------

    def _delete_history(self, queue: str, ids: Sequence[str]) -> int:
        collection = self._queue_view(queue, max_age=0)
        past = FREE._replace(query={"processed": {"$exists": True, "$ne": NO_END_DATE}})
        filters = self._filters_for(collection, past, ids)
        return sum(collection.delete_many(query, **by).deleted_count for query, by in filters)

    def _purge(self, queue: str, ids: Sequence[str] | None) -> int:
        return self._apply(queue, free_state(self._now()), ids, None)

    def _drop(self, queue: str) -> None:
        self.check_queue(queue)
        if self._marks.read(queue, queue) is not Mark.ABSENT:
            self._database()[queue].drop()
        self._marks.note_drop(queue)


def _to_raw_note(document: Document) -> RawNote:
    written = document.get("written")
    value, version = document.get("value"), document.get("version")
    return RawNote(value, version, int(written) if isinstance(written, DatetimeMS) else None)  # type: ignore[arg-type]
