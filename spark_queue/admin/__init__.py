"""Operations: release reservations, redrive dead letters, replay history, recover sinks.

Each function opens the store of a URL and closes it again. It checks everything before it changes
anything. If it was interrupted, call it again. Durations are in seconds, moments are `datetime`
with a time zone, and "now" is the time of the database. All raise `UsageError` for a wrong call.
All raise `StoreError` if the database refuses or fails, or if a newer version wrote its data.
"""

from spark_queue.admin.common import Moment
from spark_queue.admin.dead_letters import DeadLetter, DeadLetterFilters, dead_letters, redrive
from spark_queue.admin.history import HistoryEntry, HistoryFilters, history, replay
from spark_queue.admin.layouts import compact, layout, set_layout, shrink
from spark_queue.admin.recovery import RecoveredConsumer, recover_consumer
from spark_queue.admin.reservations import ReservationInfo, release, reservations, suggest
from spark_queue.admin.sinks import RecoveredSink, Sink, forget_ledger, ledgers, recover, set_ledger
from spark_queue.admin.sizes import graph_sizes

__all__ = [
    "DeadLetter",
    "DeadLetterFilters",
    "HistoryEntry",
    "HistoryFilters",
    "Moment",
    "RecoveredConsumer",
    "RecoveredSink",
    "ReservationInfo",
    "Sink",
    "compact",
    "dead_letters",
    "forget_ledger",
    "graph_sizes",
    "history",
    "layout",
    "ledgers",
    "recover",
    "recover_consumer",
    "redrive",
    "release",
    "replay",
    "reservations",
    "set_layout",
    "set_ledger",
    "shrink",
    "suggest",
]
