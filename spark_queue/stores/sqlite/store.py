"""Queues in one SQLite file: `sqlite:///relative/path.db` or `sqlite:////absolute/path.db`.

The embedded default: no server, one machine, several processes at once. Every operation is one
transaction, so a push of a batch, a commit or a move is atomic as a whole. The file is in WAL mode
with `synchronous=FULL`: acknowledged writes are on disk.

A reserved message points to its lease, so a renewal changes only the lease. The database's time is
that of the machine, read by SQLite itself.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_queue.errors import OptionError, StoreError, StoreUnavailable, did_you_mean, plural
from spark_queue.messages.arrow_bytes import DamagedBytes, append_digest, from_bytes_with_digest, to_bytes
from spark_queue.messages.buckets import (
    ClaimLimit,
    Record,
    Selected,
    are_buckets,
    count_rows,
    rows_of,
    select_records,
)
from spark_queue.messages.columns import due_ms, header_dicts, pushed_ms, slice_by_size, with_due_time
from spark_queue.messages.schema import BUCKET_PREFIX, PUSHES, WRITTEN
from spark_queue.messages.times import MAX_TIME_MS
from spark_queue.options.masking import mask
from spark_queue.stores.base import PAGE_ROWS, Store
from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.spans import WHOLE, Sample, Span
from spark_queue.stores.sqlite.change_poll import ChangePoll
from spark_queue.stores.sqlite.change_watch import ChangeWatch
from spark_queue.stores.sqlite.counting import MESSAGES_OF_RECORD, count_matching, count_messages, extra_messages
from spark_queue.stores.sqlite.file import BYTES_OF, Connection, FileId, FileUrl, OpenFiles, connect, file_mismatch
from spark_queue.stores.sqlite.foreign import is_foreign
from spark_queue.stores.sqlite.forks import sqlite_call
from spark_queue.stores.sqlite.limits import SqliteLimits
from spark_queue.stores.sqlite.places import next_place, places_up_to
from spark_queue.stores.sqlite.records import ADD_TRIES, SOUND_ROW, RowPlace, after_clause, ids_clause, read_records
from spark_queue.stores.sqlite.sampling import sample_records, span_clause
from spark_queue.stores.sqlite.scanning import condition_clauses, scan_records
from spark_queue.stores.sqlite.shared_connection import SharedConnection
from spark_queue.stores.support.budget import current_budget, spend
from spark_queue.stores.support.claiming import ClaimRequest, Shares
from spark_queue.stores.support.counters import ACTS, Counts, Statistics
from spark_queue.stores.support.damaged import EMPTY_PAGE, MAX_NEVER_DUE, Records, id_of
from spark_queue.stores.support.scan import Scanned, ScanStep
from spark_queue.stores.support.summary import Summary, SummaryRequest
from spark_queue.stores.types import (
    UNSEEN,
    ZERO_SIZES,
    Claim,
    Commit,
    Condition,
    DeadLetterInfo,
    Finding,
    HandOut,
    RawNote,
    Reservation,
    Rollback,
    Selection,
    Sizes,
    Staged,
    View,
    consumer_of,
    seen_tag,
    tag_range,
    unseen_tag,
)

#: The SQL that creates a file of version 1, then the SQL that upgrades to each later version.
#:
#: Rows have the id of their queue, not its name: that keeps rows and indexes short.
#: `message.lease` is the lease that holds the message, NULL while it is free.
#: `message.rowid` is the place of the message: see `places.py`.
#: Times are ms since 1970.
SCHEMA = (
    """
CREATE TABLE queue (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

CREATE TABLE message (
    queue INTEGER NOT NULL, id TEXT NOT NULL, mature INTEGER NOT NULL, tries INTEGER NOT NULL,
    kind TEXT NOT NULL, headers TEXT, payload BLOB NOT NULL, lease INTEGER
);
CREATE UNIQUE INDEX message_id ON message (queue, id);
CREATE INDEX message_free ON message (queue, mature, id) WHERE lease IS NULL;
CREATE INDEX message_held ON message (lease, mature, id) WHERE lease IS NOT NULL;

CREATE TABLE lease (id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, tag TEXT NOT NULL, until INTEGER);
CREATE UNIQUE INDEX lease_tag ON lease (queue, tag);

CREATE TABLE history (
    queue INTEGER NOT NULL, id TEXT NOT NULL, mature INTEGER NOT NULL, tries INTEGER NOT NULL,
    kind TEXT NOT NULL, headers TEXT, payload BLOB NOT NULL, processed INTEGER NOT NULL, until INTEGER NOT NULL
);
CREATE INDEX history_queue ON history (queue, mature, id);
CREATE INDEX history_until ON history (until);
""",
    # `rows`: an Arrow IPC stream of a WRITTEN batch in which each message has `mature`, then its
    # digest. Older versions wrote a PUSHES batch, and at first no digest.
    """
CREATE TABLE staged (stage TEXT NOT NULL, part TEXT NOT NULL, queue TEXT NOT NULL, size INTEGER NOT NULL, rows BLOB);
CREATE UNIQUE INDEX staged_part ON staged (stage, part);

CREATE TABLE note (key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
""",
    # `rows`: how many messages a record holds. Buckets have an index of their own.
    """
ALTER TABLE message ADD COLUMN rows INTEGER NOT NULL DEFAULT 1;
CREATE INDEX message_bucket ON message (lease, queue, mature, id) WHERE rows > 1;
CREATE INDEX lease_until ON lease (queue, until);
""",
    # `consumer` is NULL for messages that an older version committed.
    """
ALTER TABLE history ADD COLUMN consumer TEXT;
ALTER TABLE history ADD COLUMN outcome TEXT NOT NULL DEFAULT 'commit';
""",
    # The key is the name: a queue may be paused before it is used.
    """
CREATE TABLE statistics (
    queue TEXT PRIMARY KEY, put INTEGER NOT NULL DEFAULT 0, "get" INTEGER NOT NULL DEFAULT 0,
    reserve INTEGER NOT NULL DEFAULT 0, "commit" INTEGER NOT NULL DEFAULT 0, "rollback" INTEGER NOT NULL DEFAULT 0,
    deadletter INTEGER NOT NULL DEFAULT 0, paused INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
""",
    # When the note was last written (ms); NULL if an older version wrote it.
    """
ALTER TABLE note ADD COLUMN written INTEGER;
""",
    # Messages of the same due time are in the order of their rowid, which ends each index.
    """
DROP INDEX message_free;
CREATE INDEX message_free ON message (queue, mature) WHERE lease IS NULL;
DROP INDEX message_held;
CREATE INDEX message_held ON message (lease, mature) WHERE lease IS NOT NULL;
DROP INDEX history_queue;
CREATE INDEX history_queue ON history (queue, mature);
""",
    # NULL for messages that an older version pushed.
    """
ALTER TABLE message ADD COLUMN pushed INTEGER;
ALTER TABLE history ADD COLUMN pushed INTEGER;
""",
)
SCHEMA_VERSION = len(SCHEMA)

#: The time of SQLite's clock, in ms.
NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

#: The id of the queue with a name; NULL if there is none.
_QUEUE_ID = "(SELECT id FROM queue WHERE name = ?)"

COPIED_COLUMNS = "id, payload, kind, headers, mature, tries, pushed"

#: The columns of a note. The cast reads a value that is not text, too.
NOTE_COLUMNS = "CAST(value AS BLOB), version, written"

#: The columns of the counters.
ACT_COLUMNS = ", ".join(f'"{act}"' for act in ACTS)

#: Whether a record is a bucket. Its column `rows` cannot say so: a bucket of one message has 1.
_IS_BUCKET = f"(id >= '{BUCKET_PREFIX}' AND id < '{chr(ord(BUCKET_PREFIX) + 1)}')"

#: The id of a record with several messages, which says how many; '' for others: it may not be text.
_BUCKET_ID = "iif(rows > 1, id, '')"

#: The bytes of a record: see `bytes_of`. SQLite reads no payload for its length.
RECORD_BYTES = (
    f"CASE WHEN {_IS_BUCKET} THEN {BYTES_OF}(CAST(id AS BLOB), length(payload)) "
    "ELSE length(payload) + length(id) + coalesce(length(headers), 0) END"
)

#: Whether the messages of a lease were reserved ahead: see `is_unseen`.
_IS_UNSEEN = f"(tag LIKE '%/{UNSEEN}')"

#: Rows of one INSERT, and about how many bytes: twice as fast as one statement per row.
INSERT_ROWS = 200
INSERT_BYTES = 8 << 20

#: Most expired messages of the history that one transaction removes.
HISTORY_EXPIRY_CHUNK = 10_000

log = logging.getLogger(__name__)

#: File systems of other machines: WAL does not work on them.
NETWORK_FILE_SYSTEMS = {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}


class SqliteStore(Store):
    """Queues in one file.

    Safe to share among threads, and across a fork.
    """

    adoption_hint = "a SQLite file holds only queues"
    default_limits: ClassVar[SqliteLimits] = SqliteLimits()
    limits: SqliteLimits
    max_payload = 999_000_000  # SQLite's own limit for a row is 1,000,000,000 bytes

    @classmethod
    def resolve(cls, url: str) -> str:
        path = url.removeprefix("sqlite:///")
        if path == url or not path or "?" in path:
            raise OptionError(
                f"option 'url': {mask(url)!r} names no file; write sqlite:///relative/path.db or sqlite:////absolute/path.db",
                option="url",
            )
        return f"sqlite:///{os.path.abspath(path)}"

    def __init__(
        self, url: str, *, retry_timeout: int = 5_000, create: bool = True, limits: StoreLimits | None = None
    ) -> None:
        super().__init__(url, retry_timeout=retry_timeout, create=create, limits=limits)
        self._path = self.url.removeprefix("sqlite:///")
        self._connection = SharedConnection(self.url, self._open_shared)
        self._change_poll = ChangePoll(self._file_version)
        self._change_watch = ChangeWatch(self._file_version)
        self._driver_file = url.file if isinstance(url, FileUrl) else None  # the driver's file, in a task
        self._file: FileId | None = None  # of the first connection; later ones must match

    # --- the connection ---------------------------------------------------------------------------

    def missing_database(self) -> str:
        path = Path(self._path)
        if path.exists():
            return ""
        others = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        return f"there is no file {str(path)!r}{did_you_mean(path.name, others) or ': check the URL'}"

    def task_url(self) -> str:
        if self.create_missing and not Path(self._path).exists():
            self.now()
        file = FileId.from_path(self._path)
        return self.url if file is None else FileUrl(self.url, file)

    def _open_shared(self) -> Connection:
        opened = self._open()
        opened.files = OpenFiles(self._path)
        return opened

    def _open(self) -> Connection:
        before = self._find_file()
        if not self.create_missing and (sentence := self.missing_database()):
            raise OptionError(sentence, option="url")
        if not Path(self._path).parent.is_dir():
            raise StoreError(f"{self.url}: the folder {str(Path(self._path).parent)!r} does not exist", url=self.url)
        opened = connect(self.url, self._path, create=before is None, timeout=self.limits.busy_timeout)
        try:
            self._file = self._file or before or FileId.from_path(self._path)
            self._find_file()  # the file may have been replaced meanwhile
            opened.execute("BEGIN")  # the version and the tables of one moment: others may create the file now
            version = self._check_ours(opened)
            opened.execute("COMMIT")
            opened.execute("PRAGMA synchronous = FULL")
            opened.execute("PRAGMA cache_size = -65536")
            # By default, Debian's SQLite overwrites deleted content: a second write.
            opened.execute("PRAGMA secure_delete = FAST")
            if version < SCHEMA_VERSION:
                self._upgrade_schema(opened)
            elif version > SCHEMA_VERSION:
                raise StoreError(
                    f"{self.url} was written by a newer version of spark_queue (file version {version}, this one "
                    f"reads {SCHEMA_VERSION}): upgrade spark_queue",
                    url=self.url,
                )
        except BaseException:
            opened.close()
            raise
        return opened

    def _find_file(self) -> FileId | None:
        """Return the file to open; `None` if it is to be created.

        Raises `OptionError` if it is not the driver's file, and `StoreError` if it is not the file
        of the first connection.
        """
        if self._driver_file and (sentence := file_mismatch(self._path, self._driver_file)):
            raise OptionError(sentence, option="url", url=self.url)
        found = FileId.from_path(self._path)
        if self._file and found != self._file:
            change = "replaced" if found else "deleted"
            raise self._file_error(f"the file {self._path!r} was {change} while it was in use")
        return found

    def _check_file(self, db: Connection) -> None:
        """Raise `StoreError` if the file was deleted or replaced: others would not see a write."""
        if db.files is not None and (sentence := db.files.fault()):
            raise self._file_error(sentence)

    def _file_error(self, sentence: str) -> StoreError:
        return StoreError(
            f"{self.url}: {sentence}, so this was refused and nothing of it is kept. Put the file back, or restart "
            "all processes that have it open",
            url=self.url,
        )

    def _check_ours(self, opened: sqlite3.Connection) -> int:
        """Return the version of a file, within a transaction.

        Raises `StoreError` if the version is known and the file belongs to another program.
        """
        (version,) = opened.execute("PRAGMA user_version").fetchone()
        if version <= SCHEMA_VERSION and is_foreign(opened, SCHEMA[:version]):
            raise StoreError(f"{self.url} is a SQLite file of another program: choose another file", url=self.url)
        return int(version)

    def _upgrade_schema(self, opened: sqlite3.Connection) -> None:
        opened.execute("PRAGMA page_size = 8192")  # new files: fewer pages in a commit
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("BEGIN IMMEDIATE")
        version = self._check_ours(opened)  # again: another program may have been faster
        for step in SCHEMA[version:]:  # no step is left if another process was faster
            for statement in step.split(";"):
                opened.execute(statement)
        opened.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        opened.execute("COMMIT")
        if version == 0:
            log.info("created %s", self._path)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise StoreUnavailable(
                    f"{self.url}: another process holds the file ({text})", url=self.url
                ) from error
            hint = {
                "file is not a database": ": it is some other kind of file",
                "attempt to write a readonly database": ": make the file and its folder writable for this user",
                "unable to open database file": ": check the path and the permissions of its folder",
            }.get(text, "")
            raise StoreError(f"{self.url}: {text}{hint}", url=self.url) from error

    @contextmanager
    def _transaction(self, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
        with self._translate_errors(), self._connection.use() as db:
            try:
                if read_only:
                    db.execute("BEGIN")
                else:
                    _retry_while_busy(db, "BEGIN IMMEDIATE", self.limits.busy_timeout)
                yield db
                self._check_file(db)  # before COMMIT, which acknowledges the write
                db.execute("COMMIT")
            except BaseException:
                db.abandon()
                raise

    def _read_transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a read transaction: one snapshot. It neither waits for writers nor blocks them.

        Raises `OptionError` or `StoreError` if the file cannot be used, `StoreUnavailable` while it
        is locked.
        """
        return self._transaction(read_only=True)

    def close(self) -> None:
        super().close()
        self._change_watch.close()
        self._connection.close()

    # --- signals ----------------------------------------------------------------------------------
    # `data_version` changes when another connection writes to the file, `total_changes` when this
    # one does. Both start again in a new connection.

    def _signal_version(self, queue: str) -> int:
        return self._file_version()

    def _file_version(self) -> int:
        with self._translate_errors(), self._connection.use() as db:
            self._check_file(db)
            (version,) = db.execute("PRAGMA data_version").fetchone()
            return (self._connection.times_opened << 48) + int(version) + db.total_changes

    def watch(self, queue: str, on_signal: Callable[[str | None], None]) -> Callable[[], None]:
        return self._change_watch.watch(on_signal)

    def _notify(self, queue: str, mature: int = 0) -> None:
        self._change_watch.notify(queue)

    def _wait_signal(self, queue: str, version: int, timeout: float) -> None:
        self._change_poll.wait(version, timeout)

    # --- messages in ------------------------------------------------------------------------------

    def _push(self, queue: str, batch: pa.RecordBatch) -> int:
        rows = _to_rows(batch, self._now())  # before the lock, which others wait for
        with self._transaction() as db:
            return _insert(db, queue, rows)

    def _stage(self, queue: str, stage: str, part: str, batch: pa.RecordBatch) -> None:
        parts = [
            (stage, f"{part}.{number:06}", queue, count_rows(rows.column("id")), append_digest(to_bytes(rows, "lz4")))
            for number, rows in enumerate(slice_by_size(with_due_time(batch, self._now()), self.limits.staged_bytes))
        ]
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?)", parts)

    def _publish(self, stages: Sequence[str]) -> dict[str, int]:
        published: Counter[str] = Counter()
        with self._transaction() as db:
            for stage in stages:
                found = db.execute(
                    "SELECT queue, rows, part, rowid, size FROM staged WHERE stage = ? ORDER BY part", (stage,)
                )
                for queue, packed, part, rowid, size in found:
                    try:
                        batch = from_bytes_with_digest(packed, (WRITTEN, PUSHES))
                    except DamagedBytes as error:
                        raise StoreError(
                            f"{self.url}: part {part!r} of stage {stage!r} is damaged: {error}. It has "
                            f"{plural(size, 'message')} for queue {queue!r}; nothing was published. Restore the file "
                            "from a backup, or discard the messages: stop the query, remove the part in the sqlite3 "
                            f"shell (DELETE FROM staged WHERE rowid = {rowid}), and start the query again",
                            url=self.url, queue=queue, stage=stage, part=part,
                        ) from error  # fmt: skip
                    published[queue] += _insert(db, queue, _to_rows(batch, None))
                db.execute("DELETE FROM staged WHERE stage = ?", (stage,))
        return published

    def _staged(self, stage: str) -> list[Staged]:
        with self._read_transaction() as db:
            where, values = _subtree_clause("stage", stage)
            found = db.execute(f"SELECT stage, queue, sum(size) FROM staged WHERE {where} GROUP BY 1, 2", values)
            return [Staged(*row) for row in found]

    def _unstage(self, stage: str, keep: Sequence[str]) -> int:
        with self._transaction() as db:
            where, values = _subtree_clause("stage", stage)
            where += " AND stage NOT IN (SELECT value FROM json_each(?))"
            delete = f"DELETE FROM staged WHERE {where} RETURNING size"
            return sum(size for (size,) in db.execute(delete, (*values, json.dumps(list(keep)))))

    # --- reservations -----------------------------------------------------------------------------

    def _claim(self, queue: str, request: ClaimRequest) -> Claim:
        with self._transaction() as db:
            queue_id = _queue_id(db, queue)
            where, values = _subtree_clause("tag", request.tag)
            if request.partitions == 1:
                where, values = "tag = ?", (request.tag_of(0),)
            leases = db.execute(f"SELECT tag, id FROM lease WHERE queue = ? AND {where}", (queue_id, *values))
            if held := {tag: _count_held(db, lease) for tag, lease in leases.fetchall()}:
                return Claim(request.held_rows(held), already_held=True)
            now = _now(db)
            _expire_leases(db, queue_id, now)
            due, until = min(now, request.before), None if request.lease is None else now + request.lease
            ready = 0 if request.partitions == 1 else _count_ready(db, queue_id, due, request.rows)
            shares = Shares(request, ready)
            for partition, limit in shares:
                insert = "INSERT INTO lease (queue, tag, until) VALUES (?, ?, ?)"
                lease = db.execute(insert, (queue_id, request.tag_of(partition), until)).lastrowid
                found = _claim_free(db, queue_id, lease, due, limit)
                if not found.rows:
                    db.execute("DELETE FROM lease WHERE id = ?", (lease,))
                shares.add(partition, found)
            return shares.claim()

    def _ready(self, queue: str, limit: int, before: int) -> int:
        with self._transaction() as db:
            queue_id, now = _queue_id(db, queue), _now(db)
            _expire_leases(db, queue_id, now)
            return _count_ready(db, queue_id, min(now, before), limit)

    def _scan_free(self, queue: str, after: RowPlace | None, rows: int) -> Records:
        with self._transaction() as db:
            queue_id, now = _queue_id(db, queue), _now(db)
            _expire_leases(db, queue_id, now)
            where = "lease IS NULL AND queue = ? AND mature <= ?"
            return _read_page(db, queue, where, (queue_id, now), after, rows)

    def _replace_records(self, queue: str, tag: str | None, records: Sequence[Record], batch: pa.RecordBatch) -> bool:
        with self._transaction() as db:
            queue_id = _queue_id(db, queue)
            lease = None
            if tag is None:
                _expire_leases(db, queue_id, _now(db))
            else:
                found = db.execute("SELECT id FROM lease WHERE queue = ? AND tag = ?", (queue_id, tag)).fetchone()
                lease = found[0] if found else 0
            by_id, ids = ids_clause([one.id for one in records])
            where, values = f"FROM message WHERE queue = ? AND lease IS ? AND {by_id}", (queue_id, lease, *ids)
            present, last_place = db.execute(f"SELECT count(*), max(rowid) {where}", values).fetchone()
            if present < len(records):
                return False
            db.execute("SAVEPOINT replace_records")
            db.execute(f"DELETE {where}", values)
            places = places_up_to(db, last_place, batch.column("id").to_pylist())
            done = _insert(db, queue, _to_rows(batch, None), lease, places) == count_rows(batch.column("id"))
            if not done:  # the queue holds one of the new ids already
                db.execute("ROLLBACK TO replace_records")
            db.execute("RELEASE replace_records")
            return done

    def _page(self, queue: str, tag: str, after: RowPlace | None, rows: int) -> Records:
        with self._read_transaction() as db:
            where = "lease = (SELECT id FROM lease WHERE queue = ? AND tag = ?)"
            return _read_page(db, queue, where, (_queue_id(db, queue), tag), after, rows)

    def _record_sizes(self, queue: str, tag: str, limit: int) -> list[tuple[str, int]]:
        with self._read_transaction() as db:
            held = "FROM message WHERE lease = (SELECT id FROM lease WHERE queue = ? AND tag = ?)"
            select = f"SELECT {_BUCKET_ID}, {RECORD_BYTES} {held} ORDER BY mature, rowid LIMIT ?"
            return db.execute(select, (_queue_id(db, queue), tag, limit)).fetchall()

    def _last_due(self, queue: str, tag: str) -> int | None:
        with self._read_transaction() as db:
            held = "FROM message WHERE lease = (SELECT id FROM lease WHERE queue = ? AND tag = ?)"
            last = f"SELECT mature {held} AND typeof(mature) = 'integer' ORDER BY mature DESC LIMIT 1"
            found = db.execute(last, (_queue_id(db, queue), tag)).fetchone()
            return int(found[0]) if found else None

    def _renew(self, queue: str, tag: str, lease: int | None) -> int:
        with self._transaction() as db:
            leases = _lease_ids(db, queue, tag)
            until = None if lease is None else _now(db) + lease
            db.executemany("UPDATE lease SET until = ? WHERE id = ?", [(until, one) for one in leases])
            return sum(_count_held(db, one) for one in leases)

    def _commit(self, queue: str, tag: str, ids: Sequence[str] | None, history: int, outcome: str) -> int:
        with self._transaction() as db:
            leases = _lease_ids(db, queue, tag)
            removed = _commit_held(db, queue, leases, ids, tag, history, outcome)
            _delete_empty_leases(db, leases)
            return removed

    def _rollback(
        self, queue: str, tag: str, ids: Sequence[str] | None, delay: int | None, failed: bool, include_endless: bool
    ) -> int:
        with self._transaction() as db:
            leases = _lease_ids(db, queue, tag, endless=include_endless)
            released = _release_held(db, queue, leases, ids, delay, failed)
            _delete_empty_leases(db, leases)
            return released

    def _transfer(self, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None) -> int:
        with self._transaction() as db:
            return _transfer_held(db, queue, tag, to, ids, lease)

    def _settle_and_hand_out(
        self, queue: str, tag: str, records: Sequence[Record], how: Commit | Rollback, next: HandOut
    ) -> tuple[int, int]:
        ids = [one.id for one in records]
        if next.record.id in ids:  # it is in the other tag still: then it cannot be settled
            ids.remove(next.record.id)
        unseen, seen = unseen_tag(next.tag), seen_tag(next.tag)
        with self._transaction() as db:
            found = _leases_of(db, queue, (tag, unseen, seen))
            handed_out = _hand_out(db, queue, next, found.get(unseen), found.get(seen))
            held = [found[tag]] if tag in found else []
            if isinstance(how, Commit):
                settled = _commit_held(db, queue, held, ids, tag, how.history, how.outcome)
            else:
                settled = _release_held(db, queue, held, ids, how.delay, how.failed)
            if handed_out:
                found.pop(seen, None)  # it is not empty
            _delete_empty_leases(db, set(found.values()))
            return settled, handed_out

    def _reservations(self, queue: str, tag: str) -> list[Reservation]:
        with self._read_transaction() as db:
            where, values = _subtree_clause("tag", tag)
            select = f"SELECT tag, id, until FROM lease WHERE queue = ? AND {where} ORDER BY tag"
            found = db.execute(select, (_queue_id(db, queue), *values)).fetchall()
            return [Reservation(name, _count_held(db, lease), until) for name, lease, until in found]

    # --- between queues ---------------------------------------------------------------------------

    def _move(self, queue: str, to: str, selection: Selection, dead_letter: DeadLetterInfo | None) -> int:
        with self._transaction() as db:
            now, queue_id, target = _now(db), _queue_id(db, queue), _ensure_queue(db, to)
            if selection.tag is None:
                _expire_leases(db, queue_id, now)
                leases: list[int] = []
                by_id, values = ids_clause(selection.ids)
                where, values = f"queue = ? AND lease IS NULL AND {by_id}", (queue_id, *values)
            else:
                leases = _lease_ids(db, queue, selection.tag)
                where, values = _held_clause(queue, leases, selection.ids)
            db.execute("CREATE TEMP TABLE IF NOT EXISTS moving (row INTEGER PRIMARY KEY)")
            db.execute("DELETE FROM moving")
            where, values = f"{where} AND tries >= ?", (*values, selection.min_tries)
            if dead_letter:
                where += f" AND {SOUND_ROW}"  # the next read makes a damaged row a dead letter
            if selection.limit is None:
                moved = _change(db, "INSERT INTO moving SELECT rowid FROM message", where, values)
            else:
                select = f"SELECT rowid, {_BUCKET_ID}, 0 FROM message WHERE {where} ORDER BY mature, rowid LIMIT ?"
                found = db.execute(select, (*values, selection.limit))
                selected = select_records(found, ClaimLimit(selection.limit, selection.limit))
                moved = selected.rows
                db.executemany("INSERT INTO moving VALUES (?)", ((one,) for one in selected.keys))
            if dead_letter:
                db.execute(
                    "UPDATE message SET tries = tries + ?1, "
                    "headers = json_set(json_patch(coalesce(headers, '{}'), ?2), "
                    "'$.x-dl-tries', CAST(tries + ?1 AS TEXT)) WHERE rowid IN (SELECT row FROM moving)",
                    (dead_letter.failed, json.dumps(dead_letter.headers(queue, 0, now))),
                )
                if dead_letter.history:
                    _copy_to_history(
                        db, "rowid IN (SELECT row FROM moving)", (), dead_letter.history, selection.tag, "dead"
                    )
            db.execute(
                "UPDATE OR IGNORE message SET queue = ?, lease = NULL, tries = 0, "
                "mature = iif(typeof(mature) IN ('integer', 'real'), mature, ?) "
                "WHERE rowid IN (SELECT row FROM moving)",
                (target, now),
            )
            db.execute("DELETE FROM message WHERE queue = ? AND rowid IN (SELECT row FROM moving)", (queue_id,))
            _delete_empty_leases(db, leases)
            return moved

    # --- statistics and pause ---------------------------------------------------------------------

    def _count(self, counts: Counts) -> None:
        insert = f"INSERT INTO statistics (queue, {ACT_COLUMNS}) VALUES (?{', ?' * len(ACTS)})"
        increments = ", ".join(f'"{act}" = "{act}" + excluded."{act}"' for act in ACTS)
        rows = [(queue, *(acts.get(act, 0) for act in ACTS)) for queue, acts in counts.items()]
        # No wait for the disk, which would delay other writers: a power failure may lose counts.
        with self._translate_errors(), self._connection.use() as db:
            db.execute("PRAGMA synchronous = NORMAL")
            try:
                with self._transaction():
                    db.executemany(f"{insert} ON CONFLICT DO UPDATE SET {increments}", rows)
            finally:
                db.execute("PRAGMA synchronous = FULL")

    def _statistics(self, queues: Sequence[str] | None) -> dict[str, Statistics]:
        with self._read_transaction() as db:
            select = f"SELECT queue, paused, {ACT_COLUMNS} FROM statistics"
            where = f"{select} WHERE queue IN (SELECT value FROM json_each(?))"
            found = db.execute(select) if queues is None else db.execute(where, (json.dumps(queues),))
            return {
                name: Statistics.from_counts(dict(zip(ACTS, counts, strict=True)), bool(paused))
                for name, paused, *counts in found
            }

    def _set_paused(self, queue: str, paused: bool) -> None:
        with self._transaction() as db:
            insert = "INSERT INTO statistics (queue, paused) VALUES (?, ?)"
            db.execute(f"{insert} ON CONFLICT DO UPDATE SET paused = excluded.paused", (queue, paused))

    def _delete_statistics(self, queue: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM statistics WHERE queue = ?", (queue,))

    # --- notes ------------------------------------------------------------------------------------

    def _note(self, key: str) -> RawNote | None:
        with self._read_transaction() as db:
            # The value is read as bytes: one that is not UTF-8 can then be reported as damaged.
            found = db.execute(f"SELECT {NOTE_COLUMNS} FROM note WHERE key = ?", (key,)).fetchone()
            return RawNote(*found) if found else None

    def _notes_of(self, keys: Sequence[str]) -> dict[str, RawNote]:
        with self._read_transaction() as db:
            return _read_notes(db, keys)

    def _set_note(self, key: str, value: dict[str, Any] | None, version: int) -> bool:
        text = None if value is None else orjson.dumps(value).decode()
        with self._transaction() as db:
            if text is None:
                cursor = db.execute("DELETE FROM note WHERE key = ? AND version = ?", (key, version))
            elif version:
                change = f"UPDATE note SET value = ?, version = version + 1, written = ({NOW})"
                cursor = db.execute(f"{change} WHERE key = ? AND version = ?", (text, key, version))
            else:
                cursor = db.execute(f"INSERT OR IGNORE INTO note VALUES (?, ?, 1, ({NOW}))", (key, text))
            return cursor.rowcount == 1

    def _notes(self, prefix: str) -> dict[str, RawNote]:
        with self._read_transaction() as db:
            select = f"SELECT key, {NOTE_COLUMNS} FROM note WHERE substr(key, 1, ?) = ?"
            found = db.execute(select, (len(prefix), prefix))
            return {key: RawNote(*facts) for key, *facts in found}

    # --- reading ----------------------------------------------------------------------------------

    def _now(self) -> int:
        with self._read_transaction() as db:
            return _now(db)

    def _server(self) -> str:
        return f"sqlite {sqlite3.sqlite_version}"

    def _examine(self) -> list[Finding]:
        with self._read_transaction() as db:
            (journal,) = db.execute("PRAGMA journal_mode").fetchone()
        if journal == "wal":
            wal = Finding("journal", "good", "WAL, flushed at every commit")
        else:
            wal = Finding("journal", "bad", f"{journal}, not WAL", "sqlite3 FILE 'PRAGMA journal_mode = WAL'")
        kind = _file_system_type(self._path)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
            disk = Finding(
                "file system", "bad", f"{kind}: WAL needs shared memory and reliable locks",
                "keep the file on a disk of this machine, or use a server",
            )  # fmt: skip
        else:
            disk = Finding("file system", "good", kind or "unknown: this system does not report it")
        return [wal, disk]

    def _sizes(self, queues: Sequence[str], limit: int | None) -> dict[str, Sizes]:
        with self._read_transaction() as db:
            return _count_each(db, queues, limit)

    def _summary(self, request: SummaryRequest) -> Summary:
        with self._read_transaction() as db:
            sizes = _count_each(db, request.places, request.limit)
            paused = "SELECT queue, paused FROM statistics WHERE queue IN (SELECT value FROM json_each(?))"
            found = db.execute(paused, (json.dumps(request.queues),))
            return Summary(sizes, {queue: bool(flag) for queue, flag in found}, _read_notes(db, request.notes))

    def _never_due(self, queue: str) -> list[str]:
        with self._read_transaction() as db:
            # A text or a blob is greater than any number.
            where = "queue = ? AND lease IS NULL AND mature > ? AND typeof(mature) IN ('text', 'blob')"
            select = f"SELECT CAST(id AS BLOB) FROM message WHERE {where} LIMIT ?"
            found = db.execute(select, (_queue_id(db, queue), MAX_TIME_MS, MAX_NEVER_DUE))
            return [id_of(id) for (id,) in found]

    def _next_mature(self, queue: str) -> int | None:
        with self._read_transaction() as db:
            queue_id = _queue_id(db, queue)
            first = "SELECT mature FROM message WHERE queue = ? AND lease IS NULL ORDER BY mature LIMIT 1"
            free = db.execute(first, (queue_id,)).fetchone()
            (end,) = db.execute("SELECT min(until) FROM lease WHERE queue = ?", (queue_id,)).fetchone()
            moments = [one for one in (free[0] if free else None, end) if isinstance(one, int | float)]
            return int(min(moments)) - _now(db) if moments else None

    def _scan(self, step: ScanStep) -> Scanned:
        with self._read_transaction() as db:
            return scan_records(db, _queue_id(db, step.queue), step, _IS_BUCKET, _now(db))

    def _peek(
        self, queue: str, where: Sequence[Condition], view: View, rows: int, span: Span = WHOLE
    ) -> Iterator[Records]:
        with self._translate_errors():
            # A connection of its own: its read transaction is the snapshot for a slow caller, too.
            with sqlite_call(self.url):
                db = self._open()
                db.is_snapshot = True
            try:
                yield from db.pages(_read_snapshot(db, queue, where, view, rows, span))
            except sqlite3.OperationalError:
                spend()  # perhaps its time has ended
                raise
            finally:
                db.close()

    def _sample(self, queue: str, view: View, size: int) -> Sample:
        with self._read_transaction() as db:
            queue_id = _queue_id(db, queue)
            has_bucket = f"SELECT 1 FROM message WHERE queue = ? AND {_IS_BUCKET} LIMIT 1"
            if view == "messages" and db.execute(has_bucket, (queue_id,)).fetchone():
                return Sample()
            return sample_records(db, queue_id, view, size, self.limits.index_walk)

    def _buckets(self, queue: str, id: str | None) -> Iterator[Records]:
        return self._read_pages(lambda after: self._bucket_page(queue, id, after))

    def _bucket_page(self, queue: str, id: str | None, after: RowPlace | None) -> Records:
        with self._read_transaction() as db:
            where = f"queue = ? AND {_IS_BUCKET} AND (? IS NULL OR id = ?)"
            return _read_page(db, queue, where, (_queue_id(db, queue), id, id), after, PAGE_ROWS)

    def _queues(self) -> list[str]:
        with self._read_transaction() as db:
            return [name for (name,) in db.execute("SELECT name FROM queue")]

    # --- housekeeping -----------------------------------------------------------------------------

    def _delete_history(self, queue: str, ids: Sequence[str]) -> int:
        with self._transaction() as db:
            by_id, values = ids_clause(ids)
            where, values = f"queue = ? AND {by_id}", (_queue_id(db, queue), *values)
            (removed,) = db.execute(f"SELECT count(DISTINCT id) FROM history WHERE {where}", values).fetchone()
            db.execute(f"DELETE FROM history WHERE {where}", values)
            return int(removed)

    def shrink(self) -> int:
        # In place: a copy that is renamed over the file would stop all processes that have it open.
        with self._translate_errors(), self._connection.use() as db:
            before = self._file_bytes()
            try:
                self._check_file(db)
                _retry_while_busy(
                    db, "VACUUM", self.limits.busy_timeout
                )  # it fails if another process commits as it begins
                (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._check_file(db)
            except BaseException:
                db.abandon()
                raise
            if busy:
                raise StoreUnavailable(
                    f"{self.url}: the file was rewritten, but it stays large while another process reads its old "
                    "state: run this again when long reads have ended",
                    url=self.url,
                )
            return max(0, before - self._file_bytes())

    def _file_bytes(self) -> int:
        """Return the bytes of the file and its WAL."""
        files = [Path(self._path), Path(f"{os.path.realpath(self._path)}-wal")]
        return sum(one.stat().st_size for one in files if one.exists())

    def _purge(self, queue: str, ids: Sequence[str] | None) -> int:
        with self._transaction() as db:
            queue_id = _queue_id(db, queue)
            _expire_leases(db, queue_id, _now(db))
            by_id, values = ids_clause(ids)
            return _change(db, "DELETE FROM message", f"queue = ? AND lease IS NULL AND {by_id}", (queue_id, *values))

    def _drop(self, queue: str) -> None:
        with self._transaction() as db:
            queue_id = _queue_id(db, queue)
            for table in ("message", "lease", "history"):
                db.execute(f"DELETE FROM {table} WHERE queue = ?", (queue_id,))
            db.execute("DELETE FROM queue WHERE id = ?", (queue_id,))


def _retry_while_busy(db: sqlite3.Connection, statement: str, timeout: float) -> None:
    """Execute a statement that needs the file alone; retry while the file is locked.

    Raises `sqlite3.OperationalError` after `timeout` seconds. SQLite itself would sleep up to
    100 ms between tries. Here it is a sixteenth of the time waited so far, 0.5 to 50 ms: two
    writers that alternate lose little, and many writers do not poll all the time.
    """
    start = time.monotonic()
    db.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                db.execute(statement)
                return
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - start
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited > timeout:
                    raise
                time.sleep(min(max(waited / 16, 0.0005), 0.05))
    finally:
        db.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")


# --- steps inside a transaction -------------------------------------------------------------------


def _now(db: sqlite3.Connection) -> int:
    (now,) = db.execute(NOW).fetchone()
    return int(now)


def _limit_time(db: sqlite3.Connection) -> None:
    """Let a connection end its statements when the budget of a look ends, and use less memory."""
    if (budget := current_budget()) is not None:
        db.execute("PRAGMA cache_size = -4096")  # several may look at the same time
        db.set_progress_handler(lambda: budget.seconds_left <= 0, 10_000)


def _queue_id(db: sqlite3.Connection, queue: str) -> int:
    """Return the row id of the queue, or 0 if it does not exist."""
    found = db.execute("SELECT id FROM queue WHERE name = ?", (queue,)).fetchone()
    return int(found[0]) if found else 0


def _ensure_queue(db: sqlite3.Connection, queue: str) -> int:
    """Return the row id of the queue; create the queue if it does not exist."""
    db.execute("INSERT OR IGNORE INTO queue (name) VALUES (?)", (queue,))
    return _queue_id(db, queue)


class _InsertRows(NamedTuple):
    """Rows for the table `message`: SQL for the columns from `pushed` on, and their parameters.

    `parameters` are those of each row, `shared` those of all: `?1` is the first. One statement
    inserts up to `rows_per_statement` rows: one, if some are buckets.
    """

    placeholders: str
    ids: Sequence[str]
    parameters: Sequence[tuple[Any, ...]]
    rows_per_statement: int
    shared: tuple[Any, ...]


def _to_rows(batch: pa.RecordBatch, now: int | None) -> _InsertRows:
    """Return the rows of a PUSHES or WRITTEN batch.

    `now` is `None` for rows that have their `mature`, and were pushed before.
    """
    ids, due, payloads = batch.column("id").to_pylist(), due_ms(batch, now or 0), batch.column("payload").to_pylist()
    kinds, tries = batch.column("payload_kind"), batch.column("tries")
    bytes_of_one = batch.column("payload").nbytes // max(1, len(ids)) + 1
    step = max(1, min(INSERT_ROWS, INSERT_BYTES // bytes_of_one))
    if pc.any(are_buckets(batch.column("id"))).as_py():
        step = 1
    uniform = pc.all(pc.and_(pc.equal(kinds, "json"), pc.equal(tries, 0))).as_py()
    pushed = set(pushed_ms(batch, now))
    if uniform and len(pushed) == 1 and not len(batch.column("headers").items):
        rows = list(zip(ids, due, payloads, strict=True))
        return _InsertRows("?1, ?, ?, 0, 'json', NULL, ?", ids, rows, step, tuple(pushed))
    headers = [orjson.dumps(one).decode() if one else None for one in header_dicts(batch)]
    columns = pushed_ms(batch, now), ids, due, tries.to_pylist(), kinds.to_pylist(), headers, payloads
    return _InsertRows("?, ?, ?, ?, ?, ?, ?", ids, list(zip(*columns, strict=True)), step, ())


def _insert(
    db: sqlite3.Connection,
    queue: str,
    new_rows: _InsertRows,
    lease: int | None = None,
    places: Sequence[int] | None = None,
) -> int:
    """Insert the rows whose ids the queue does not have; return the number of messages.

    They are held by `lease`, or free if it is `None`. They get the next places, or `places`, which
    are free.
    """
    queue_id = _ensure_queue(db, queue)
    columns = "rowid, queue, lease, rows, pushed, id, mature, tries, kind, headers, payload"
    at = inserted = 0
    while left := len(new_rows.parameters) - at:
        size = 1 if places else new_rows.rows_per_statement
        size = min(size, 2 ** (left.bit_length() - 1))  # few statements are prepared
        some, weight = new_rows.parameters[at : at + size], rows_of(new_rows.ids[at])
        place = str(places[at]) if places else next_place(weight)
        at += size
        values = f"({place}, {queue_id}, {'NULL' if lease is None else lease}, {weight}, {new_rows.placeholders})"
        statement = f"INSERT INTO message ({columns}) VALUES {', '.join([values] * len(some))} ON CONFLICT DO NOTHING"
        parameters = [*new_rows.shared, *itertools.chain.from_iterable(some)]
        inserted += weight * db.execute(statement, parameters).rowcount
    return inserted


def _change(db: sqlite3.Connection, statement: str, where: str, values: Sequence[Any], *settings: Any) -> int:
    """Execute a statement on the records that meet a condition; return how many messages they hold.

    `settings` are the parameters that come before those of the condition.
    """
    extra = extra_messages(db, where, values)
    return db.execute(f"{statement} WHERE {where}", (*settings, *values)).rowcount + extra


def _change_some(db: sqlite3.Connection, statement: str, where: str, values: Sequence[Any], *settings: Any) -> int:
    """Do the same, in one statement, which is faster for a few records."""
    changed = db.execute(f"{statement} WHERE {where} RETURNING {MESSAGES_OF_RECORD}", (*settings, *values))
    return sum(rows for (rows,) in changed)


def _count_ready(db: sqlite3.Connection, queue: int, due: int, limit: int) -> int:
    """Return how many free messages are due by a time (ms), counted up to `limit`."""
    found, _ = count_matching(db, "lease IS NULL AND queue = ? AND mature <= ?", (queue, due), limit)
    return min(found, limit)


def _claim_free(db: sqlite3.Connection, queue: int, lease: int | None, due: int, limit: ClaimLimit) -> Selected:
    """Let a lease hold the first free messages that are due by a time (ms), within a limit.

    Return their numbers.
    """
    free = "FROM message WHERE queue = ? AND lease IS NULL AND mature <= ? ORDER BY mature, rowid LIMIT ?"
    values, size = (queue, due, limit.target), 0
    select_each = _has_free_bucket(db, queue)
    if limit.bytes is not None and not select_each:
        # One sum for all, which takes a tenth of the time of the update. Usually they fit.
        (size,) = db.execute(f"SELECT total(size) FROM (SELECT {RECORD_BYTES} AS size {free})", values).fetchone()
        select_each = size > limit.bytes
    if not select_each:
        update = f"UPDATE message SET lease = ? WHERE rowid IN (SELECT rowid {free})"
        return Selected([], db.execute(update, (lease, *values)).rowcount, int(size))
    size_column = "0" if limit.bytes is None else RECORD_BYTES
    found = select_records(db.execute(f"SELECT rowid, {_BUCKET_ID}, {size_column} {free}", values), limit)
    update = "UPDATE message SET lease = ? WHERE rowid IN (SELECT value FROM json_each(?))"
    db.execute(update, (lease, json.dumps(found.keys)))
    return found


def _count_each(db: sqlite3.Connection, queues: Sequence[str], limit: int | None) -> dict[str, Sizes]:
    """Return the sizes of queues by name; those that do not exist are empty."""
    now = _now(db)
    select = "SELECT name, id FROM queue WHERE name IN (SELECT value FROM json_each(?))"
    ids = dict(db.execute(select, (json.dumps(queues),)).fetchall())
    found: dict[str, Sizes] = {}
    for queue in queues:
        spend()  # the time of a look may have ended
        found[queue] = count_messages(db, ids[queue], now, limit) if queue in ids else ZERO_SIZES
    return found


def _read_notes(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, RawNote]:
    select = f"SELECT key, {NOTE_COLUMNS} FROM note WHERE key IN (SELECT value FROM json_each(?))"
    return {key: RawNote(*facts) for key, *facts in db.execute(select, (json.dumps(keys),))}


def _has_free_bucket(db: sqlite3.Connection, queue: int) -> bool:
    """Return whether the queue has a free bucket."""
    where = "WHERE rows > 1 AND lease IS NULL AND queue = ?"
    return bool(db.execute(f"SELECT 1 FROM message INDEXED BY message_bucket {where} LIMIT 1", (queue,)).fetchone())


def _subtree_clause(column: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the WHERE clause of a name and those below it, and its values. "" matches all."""
    if not name:
        return "1", ()
    first, end = tag_range(name)
    # One range of an index. The last term excludes the few names between `name` and those below it.
    return f"({column} >= ? AND {column} < ? AND ({column} = ? OR {column} >= ?))", (name, end, name, first)


def _file_system_type(path: str) -> str:
    """Return the type of the file system of a file; empty if the system does not report it."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return ""
    entries = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    ancestors = {str(one) for one in Path(os.path.realpath(path)).parents}
    return max(((len(place), kind) for place, kind in entries if place in ancestors), default=(0, ""))[1]


def _lease_ids(db: sqlite3.Connection, queue: str, tag: str, *, endless: bool = True) -> list[int]:
    """Return the ids of the leases of a tag and those below it; without `endless`, if they end."""
    where, values = _subtree_clause("tag", tag)
    where += "" if endless else " AND until IS NOT NULL"
    found = db.execute(f"SELECT id FROM lease WHERE queue = {_QUEUE_ID} AND {where}", (queue, *values))
    return [id for (id,) in found]


def _leases_of(db: sqlite3.Connection, queue: str, tags: tuple[str, str, str]) -> dict[str, int]:
    """Return the ids of the leases of these tags, by tag."""
    select = f"SELECT tag, id FROM lease WHERE queue = {_QUEUE_ID} AND tag IN (?, ?, ?)"
    return dict(db.execute(select, (queue, *tags)).fetchall())


def _count_held(db: sqlite3.Connection, lease: int) -> int:
    (rows,) = db.execute("SELECT count(*) FROM message WHERE lease = ?", (lease,)).fetchone()
    return int(rows) + extra_messages(db, "lease = ?", (lease,))


def _held_clause(queue: str, leases: Sequence[int], ids: Sequence[str] | None) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the messages that these leases hold, and its values."""
    one = len(leases) == 1
    held = "lease = ?" if one else "lease IN (SELECT value FROM json_each(?))"
    values = leases[0] if one else json.dumps(leases)
    by_id, some = ids_clause(ids)
    if len(some) == 1:  # the index of ids is faster: a lease may hold many messages; `+` excludes its index
        return f"queue = {_QUEUE_ID} AND +{held} AND {by_id}", (queue, values, *some)
    return f"{held} AND {by_id}", (values, *some)


def _commit_held(
    db: sqlite3.Connection,
    queue: str,
    leases: Sequence[int],
    ids: Sequence[str] | None,
    tag: str,
    history: int,
    outcome: str,
) -> int:
    held, values = _held_clause(queue, leases, ids)
    if history:
        _copy_to_history(db, held, values, history, tag, outcome)
    change = _change if ids is None else _change_some
    return change(db, "DELETE FROM message", held, values)


def _release_held(
    db: sqlite3.Connection,
    queue: str,
    leases: Sequence[int],
    ids: Sequence[str] | None,
    delay: int | None,
    failed: bool,
) -> int:
    held, values = _held_clause(queue, leases, ids)
    add_tries = ADD_TRIES.format("?")
    release = f"UPDATE message SET lease = NULL, mature = coalesce(?, mature), tries = {add_tries}"
    due = None if delay is None else _now(db) + delay
    change = _change if ids is None else _change_some
    return change(db, release, held, values, due, int(failed))


def _transfer_held(
    db: sqlite3.Connection, queue: str, tag: str, to: str, ids: Sequence[str] | None, lease: int | None
) -> int:
    until = None if lease is None else _now(db) + lease
    (target,) = db.execute(
        "INSERT INTO lease (queue, tag, until) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET until = excluded.until RETURNING id",
        (_queue_id(db, queue), to, until),
    ).fetchone()
    leases = [one for one in _lease_ids(db, queue, tag) if one != target]
    held, values = _held_clause(queue, leases, ids)
    change = _change if ids is None else _change_some
    transferred = change(db, "UPDATE message SET lease = ?", held, values, target)
    _delete_empty_leases(db, [*leases, target])
    return transferred


def _hand_out(db: sqlite3.Connection, queue: str, next: HandOut, unseen: int | None, seen: int | None) -> int:
    """Hand out a message of one lease to the other; return whether it was held (0 or 1)."""
    if unseen is None:
        return 0
    if seen is None:
        return _transfer_held(db, queue, unseen_tag(next.tag), seen_tag(next.tag), [next.record.id], next.lease)
    held, values = _held_clause(queue, [unseen], [next.record.id])
    return db.execute(f"UPDATE message SET lease = ? WHERE {held}", (seen, *values)).rowcount


def _read_page(
    db: sqlite3.Connection, queue: str, where: str, values: Sequence[Any], after: RowPlace | None, rows: int
) -> Records:
    """Return the first records in order that meet a condition and come after a place."""
    after_place, place = after_clause(after)
    source = f"FROM message WHERE {where} AND {after_place} ORDER BY mature, rowid LIMIT ?"
    return next(read_records(db, queue, source, (*values, *place, rows), rows), EMPTY_PAGE)


def _read_snapshot(
    db: sqlite3.Connection,
    queue: str,
    where: Sequence[Condition],
    view: View,
    rows: int,
    span: Span,
) -> Generator[Records]:
    """Yield the records that meet conditions, in pages, in a transaction that stays open."""
    _limit_time(db)
    db.execute("BEGIN")
    clauses = ["queue = ?"]
    values: list[Any] = [_queue_id(db, queue)]
    if view == "history":
        clauses.append("until > ?")
        values.append(_now(db))
    within, ends = span_clause(view, span)
    clauses += within
    values += ends
    more, more_values = condition_clauses(where, _IS_BUCKET)
    clauses += more
    values += more_values
    source = f"FROM {'history' if view == 'history' else 'message'} WHERE {' AND '.join(clauses)}"
    yield from read_records(db, queue, source, values, rows, history=view == "history")


def _delete_empty_leases(db: sqlite3.Connection, leases: Iterable[int]) -> None:
    db.executemany(
        "DELETE FROM lease WHERE id = ? AND NOT EXISTS (SELECT 1 FROM message WHERE lease = lease.id)",
        [(one,) for one in leases],
    )


def _copy_to_history(
    db: sqlite3.Connection, where: str, values: Sequence[Any], history: int, tag: str | None, outcome: str
) -> None:
    """Copy the messages that meet a condition to the history, which keeps them for `history` ms."""
    now = _now(db)
    _delete_expired_history(db, now)
    db.execute(
        f"INSERT INTO history (queue, {COPIED_COLUMNS}, processed, until, consumer, outcome) "
        f"SELECT queue, {COPIED_COLUMNS}, ?, ?, ?, ? FROM message WHERE {where} ORDER BY mature, rowid",
        (now, now + history, consumer_of(tag), outcome, *values),
    )


def _delete_expired_history(db: sqlite3.Connection, now: int) -> None:
    db.execute(
        "DELETE FROM history WHERE rowid IN (SELECT rowid FROM history WHERE until <= ? LIMIT ?)",
        (now, HISTORY_EXPIRY_CHUNK),
    )


def _expire_leases(db: sqlite3.Connection, queue: int, now: int) -> None:
    """Release the messages of expired leases of the queue; each gets one more try.

    Also remove expired history of all queues, a limited number of messages per call, so that no
    other process waits long.
    """
    _delete_expired_history(db, now)
    ended = "SELECT id FROM lease WHERE queue = ? AND until <= ?"
    if db.execute(f"{ended} LIMIT 1", (queue, now)).fetchone():
        # Messages that were reserved ahead have not been tried.
        for condition, failed in ((f"NOT {_IS_UNSEEN}", 1), (_IS_UNSEEN, 0)):
            release = f"UPDATE message SET lease = NULL, tries = {ADD_TRIES.format(failed)}"
            db.execute(f"{release} WHERE lease IN ({ended} AND {condition})", (queue, now))
        db.execute("DELETE FROM lease WHERE queue = ? AND until <= ?", (queue, now))
