"""The names of the package: `__init__.py` imports each at its first use."""

from .graph import ExchangeGraph as ExchangeGraph
from .graph import isomorphic as isomorphic
from .running_step import Status as Status
from .selector import Env as Env
