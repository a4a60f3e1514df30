"""What an operator does: release reservations, redrive dead letters, replay history, finish the batches of sinks.

Each function opens the store behind a URL and closes it again. It checks everything before it changes anything, and
may be called again whenever it was cut short. Durations are seconds, moments are `datetime` with a time zone, and
"now" is that of the database. All raise `UsageError` where the call cannot work as it was made, and `StoreError`
where the database refuses or fails, or what it keeps was written by a newer version.
"""

from spark_queue.operations.common import Moment
from spark_queue.operations.dead import DeadLetter, Filters, dead_letters, redrive
from spark_queue.operations.held import Held, release, reservations, suggest
from spark_queue.operations.layouts import compact, layout, set_layout, shrink
from spark_queue.operations.levels import graph_sizes
from spark_queue.operations.past import Past, PastFilters, history, replay
from spark_queue.operations.recovery import Settled, recover_consumer
from spark_queue.operations.sinks import Recovered, Sink, forget_ledger, ledgers, recover, set_ledger

__all__ = [
    "DeadLetter",
    "Filters",
    "Held",
    "Moment",
    "Past",
    "PastFilters",
    "Recovered",
    "Settled",
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
