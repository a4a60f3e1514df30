"""The connections of callers: how many there may be, counted from the moment they are accepted.

Each costs an open file, which stores need, too. At the limit, a new connection takes the place of
the oldest one that has not sent the head of a request yet. So silent connections keep no caller
out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

#: Connections that the system keeps until the server accepts them. They cost the server no file.
BACKLOG = 2_048

#: Files that the process needs beside connections of callers: of each store, which has a connection
#: for each thread of the service at most, and all others.
FILES_PER_STORE, OTHER_FILES = 100, 100

#: Fewest and most connections of callers.
MIN_CONNECTIONS, MAX_CONNECTIONS = 32, 60_000

log = logging.getLogger(__name__)


def raise_limit_of_files(stores: int) -> int:
    """Raise the limit of open files as far as possible, and return that of connections."""
    try:
        import resource
    except ModuleNotFoundError:  # on Windows, which has no such limit
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    beside = OTHER_FILES + FILES_PER_STORE * stores
    most = MAX_CONNECTIONS + beside
    allowed = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(MIN_CONNECTIONS, allowed - beside)


class Connections:
    """The connections of a server, each under the protocol that has it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.BaseProtocol] = set()
        self._silent: OrderedDict[asyncio.BaseProtocol, Callable[[], object]] = OrderedDict()
        self._warned = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: asyncio.BaseProtocol, end: Callable[[], object]) -> bool:
        """Add a connection that has sent no request. Return `False` if there is no place for it.

        `end` ends it. A second call for it, after its handshake, replaces `end`.
        """
        if one in self._open:
            self._silent[one] = end
            return True
        if len(self._open) >= self._most:
            self._warn()
            if not self._silent:
                return False
            oldest, end_oldest = self._silent.popitem(last=False)
            self._open.discard(oldest)
            end_oldest()
        self._open.add(one)
        self._silent[one] = end
        return True

    def hear(self, one: asyncio.BaseProtocol) -> None:
        """Note that the head of a request has come: this connection keeps its place."""
        self._silent.pop(one, None)

    def remove(self, one: asyncio.BaseProtocol) -> None:
        """Remove a connection that has ended."""
        self._open.discard(one)
        self._silent.pop(one, None)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "there are more than %d connections: the oldest without a request ends, or a new one gets 503. The "
                "limit follows from that of open files (ulimit -n). This is logged once", self._most,
            )  # fmt: skip
