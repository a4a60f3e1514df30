"""The names of the package: `__init__.py` imports each at its first use."""

from .admin.dead_letters import dead_letters as dead_letters
from .admin.dead_letters import redrive as redrive
from .admin.history import history as history
from .admin.history import replay as replay
from .admin.layouts import compact as compact
from .admin.layouts import layout as layout
from .admin.layouts import set_layout as set_layout
from .admin.layouts import shrink as shrink
from .admin.logs import logs as logs
from .admin.logs import trim as trim
from .admin.recovery import recover_consumer as recover_consumer
from .admin.reservations import release as release
from .admin.reservations import reservations as reservations
from .admin.sinks import forget_ledger as forget_ledger
from .admin.sinks import ledgers as ledgers
from .admin.sinks import recover as recover
from .admin.sinks import set_ledger as set_ledger
from .client import Queue as Queue
from .client import QueueSizes as QueueSizes
from .errors import AccessDenied as AccessDenied
from .errors import CheckpointError as CheckpointError
from .errors import DriverMissing as DriverMissing
from .errors import FencedError as FencedError
from .errors import GraphError as GraphError
from .errors import MessageError as MessageError
from .errors import NotAQueue as NotAQueue
from .errors import OptionError as OptionError
from .errors import PoolExhausted as PoolExhausted
from .errors import QueueError as QueueError
from .errors import SchemaError as SchemaError
from .errors import StoreError as StoreError
from .errors import StoreUnavailable as StoreUnavailable
from .errors import UnreadError as UnreadError
from .errors import UsageError as UsageError
from .events import Events as Events
from .graph.processor_function import Output as Output
from .graph.processor_function import ProcessorContext as ProcessorContext
from .graph.processor_function import wrap_error as wrap_error
from .messages.buckets import Buckets as Buckets
from .messages.message import Message as Message
from .runner import ExchangeGraph as ExchangeGraph
from .spark import delivery_hash as delivery_hash
from .spark import drain as drain
from .spark import register as register
from .spark import session as session
from .spark import supervise as supervise
from .stores import open_store as open_store
from .stores.policy import QueuePolicy as QueuePolicy
from .stores.support.counters import Statistics as Statistics

__all__: list[str]
__version__: str
