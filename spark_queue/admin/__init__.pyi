"""The names of the package: `__init__.py` imports each at its first use."""

from . import consume as consume
from . import damage as damage
from . import doctor as doctor
from . import logs as logs
from . import push as push
from . import queues as queues
from . import sizes as sizes
from .adoption import adopt as adopt
from .adoption import inspect_foreign as inspect_foreign
from .common import Moment as Moment
from .dead_letters import DeadLetter as DeadLetter
from .dead_letters import DeadLetterFilters as DeadLetterFilters
from .dead_letters import dead_letters as dead_letters
from .dead_letters import redrive as redrive
from .history import HistoryEntry as HistoryEntry
from .history import HistoryFilters as HistoryFilters
from .history import HistoryPage as HistoryPage
from .history import browse_history as browse_history
from .history import history as history
from .history import replay as replay
from .layouts import compact as compact
from .layouts import layout as layout
from .layouts import set_layout as set_layout
from .layouts import shrink as shrink
from .recovery import RecoveredConsumer as RecoveredConsumer
from .recovery import recover_consumer as recover_consumer
from .reservations import ReservationInfo as ReservationInfo
from .reservations import release as release
from .reservations import reservations as reservations
from .reservations import suggest as suggest
from .sinks import RecoveredSink as RecoveredSink
from .sinks import Sink as Sink
from .sinks import forget_ledger as forget_ledger
from .sinks import ledgers as ledgers
from .sinks import recover as recover
from .sinks import set_ledger as set_ledger
from .sizes import graph_sizes as graph_sizes

__all__: list[str]
