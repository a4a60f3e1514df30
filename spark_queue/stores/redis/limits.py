"""The limits of the stores in Redis."""

from __future__ import annotations

from dataclasses import dataclass

from spark_queue.stores.limits import StoreLimits
from spark_queue.stores.redis.documents import CALL_BYTES


@dataclass(frozen=True, kw_only=True)
class RedisLimits(StoreLimits):
    """Limits of a store in Redis."""

    #: Most messages of one script call, and of one member of `held`.
    script_chunk: int = 5_000
    run_size: int = 250

    #: After how many bytes of documents a script stops reading.
    script_bytes: int = CALL_BYTES

    #: Most connections of a client, as in MongoDB's driver; how long to wait for a free one (s).
    pool_size: int = 100
    pool_timeout: float = 10.0
