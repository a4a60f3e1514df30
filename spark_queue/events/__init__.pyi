"""The names of the package: `__init__.py` imports each at its first use."""

from .audit_log import AuditRecord as AuditRecord
from .config import Declarations as Declarations
from .config import declared_in as declared_in
from .config import executors_in as executors_in
from .config import heartbeats_in as heartbeats_in
from .event import Event as Event
from .executors import Executor as Executor
from .executors import Executors as Executors
from .heartbeats import Heartbeat as Heartbeat
from .heartbeats import tick as tick
from .queue import Events as Events
from .settings import EventSettings as EventSettings
from .status import EventState as EventState

__all__: list[str]
