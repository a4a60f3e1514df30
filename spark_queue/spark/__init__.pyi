"""The names of the package: `__init__.py` imports each at its first use."""

from .data_source import QueueDataSource as QueueDataSource
from .sessions import activate as activate
from .sessions import register as register
from .sessions import session as session
from .start_turns import start_in_turn as start_in_turn
from .supervision import delivery_hash as delivery_hash
from .supervision import drain as drain
from .supervision import had_batch as had_batch
from .supervision import spark_version as spark_version
from .supervision import supervise as supervise
