"""Accept connections, and count each before anything else is done with it, also before its TLS.

A server of asyncio with a certificate would show a connection only after its handshake. Until then
nothing would count it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from spark_queue.rest.guard.connections import Connections

#: How long a handshake of TLS may take, and how long to wait if none can be accepted (s).
HANDSHAKE_TIMEOUT, ACCEPT_PAUSE = 10.0, 0.1

#: How many connections are accepted before other calls have a turn.
ACCEPTED_TOGETHER = 64

log = logging.getLogger(__name__)


class Acceptor:
    """Accepts the connections of a listening socket, with TLS if there is a context."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        accepted: Connections,
        context: ssl.SSLContext | None,
    ) -> None:
        """`make` returns the protocol of a new connection; it adds itself to `accepted`, too."""
        self._listening, self._make, self._accepted, self._context = listening, make, accepted, context
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept, in this event loop."""
        self._listening.setblocking(False)
        self._start(self._accept())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for number in count(1):
            if number % ACCEPTED_TOGETHER == 0:
                await asyncio.sleep(0)  # calls of others come between
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # else the caller has gone already
                    log.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE)
                continue
            protocol = self._make()
            task = self._start(self._connect(connection, protocol))
            if not self._accepted.add(protocol, task.cancel) and self._context is not None:
                task.cancel()  # without TLS, `protocol` says why

    async def _connect(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        tls: dict[str, Any] = (
            {} if self._context is None else {"ssl": self._context, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT}
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, **tls)
        except (OSError, asyncio.CancelledError) as error:  # no TLS, too late, or the connection has ended
            connection.close()
            self._accepted.remove(protocol)
            if isinstance(error, asyncio.CancelledError):
                raise

    def close(self) -> None:
        """Accept no more, and end the handshakes."""
        for one in self._tasks:
            one.cancel()
