"""The limits of a store: sizes of steps, intervals and timeouts that no user sets.

An object is passed when a store is made. A database adds its own limits in a subclass, which its
`Store` names as `default_limits`. A default is also an attribute of the class, for code that has no
store: `StoreLimits.owner_timeout_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.stores.types import COUNT_LIMIT


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """Limits that each store has. Times are in seconds, unless a name ends with `_ms`."""

    #: The smallest partition that is worth a task of its own (messages).
    smallest_partition: int = 500

    #: How many queues, or notes, one request to the database is for, about.
    queues_chunk: int = 100

    #: How many queues one count of their messages is for, and one summary.
    queues_per_count: int = 100
    queues_per_summary: int = 100

    #: How many records a compaction reads at once.
    compaction_step: int = 2_000

    #: At how many messages of a state a count ends that is made often.
    count_limit: int = COUNT_LIMIT

    #: How often a waiting client polls.
    poll_interval_ms: float = 500

    #: How long the flag of a pause is cached, and how many flags are.
    pause_cache: float = 0.25
    cached_pauses: int = 10_000

    #: How long counts wait to be written, and how long the first retry waits.
    flush_interval: float = 0.1
    flush_retry: float = 1.0

    #: How many places of records are read for each part of a queue that is cut: of two parts, each
    #: then has 46 to 54 % of the records. A queue with at most `index_walk` times as many records
    #: is read by its index. So the sample of a larger one is less than 5 % of it: MongoDB takes it
    #: without a scan.
    places_per_part: int = 300
    index_walk: int = 25

    # --- signals ---

    #: For how long the signals of a queue are merged into one.
    signal_window: float = 0.05

    #: How much less often a client polls while signals arrive.
    rarer_polls: int = 10

    #: How long to wait before the next connection attempt, at first and at most.
    reconnect_pause: float = 1.0
    max_reconnect_pause: float = 60.0

    #: How long a thread that begins to wait lets the connection come up.
    listen_timeout: float = 1.0

    #: How often the listening thread does other work if no signal comes.
    listener_heartbeat: float = 1.0

    #: How long a queue is kept for which no thread waits, and how many of these are kept.
    idle_timeout: float = 60.0
    idle_queues: int = 1_000

    # --- consumers ---

    #: How long an owner counts as alive after a heartbeat, and how often it sends one.
    owner_timeout_ms: int = 10_000
    heartbeat: float = 2.5

    #: How long a reader of several inputs waits for processes that may have died before their first
    #: batch.
    order_timeout: float = 10.0

    #: How often a process that waits to take over reads the note.
    takeover_poll: float = 0.1

    # --- logs ---

    #: Most messages in a segment (unless one bucket holds more), most by which it grows, and most
    #: in one seal.
    segment_rows: int = 2_500
    segment_growth: int = 250
    seal_rows: int = 10_000

    #: How many segments a page lists. The metadata of a log lists up to twice as many.
    page_segments: int = 256

    #: How long to wait between two checks for segments that are too old, at most.
    trim_interval: float = 60.0

    # --- ledgers ---

    #: How many hashes of rows the ledger itself has, which each task reads; and how many one note
    #: has.
    hashes_in_ledger: int = 1_000
    hashes_per_note: int = 500_000

    #: The largest batch that is compared (rows): the tasks send its hashes, 80 MB, to the driver.
    compared_rows: int = 10_000_000
