"""Answers that their callers do not read: how much memory they may hold, and for how long.

An answer stays in the memory of the server until the system has sent it. So a caller that asks for
large pages and reads none of them could take all memory. Above a limit of bytes, the connection
that has not read for the longest time ends. One that takes no byte for some time ends anyway.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import OrderedDict
from dataclasses import dataclass

#: Most bytes of answers that connections have not taken yet, in all. The server holds each of them
#: about three times.
MAX_UNREAD = 64 << 20

#: How long a connection may take no byte of an answer (s).
READ_TIMEOUT = 20.0

#: To close a connection at once, whatever is to be sent yet: see SO_LINGER in socket(7).
_NO_LINGER = struct.pack("ii", 1, 0)

log = logging.getLogger(__name__)


@dataclass
class _Reader:
    """A connection with an answer that it has not read, and its bytes at the last check."""

    transport: asyncio.Transport
    left: int
    timer: asyncio.TimerHandle | None = None


class UnreadAnswers:
    """The answers that wait to be read. Call it from one thread, that of the event loop."""

    def __init__(self) -> None:
        self._readers: OrderedDict[asyncio.BaseProtocol, _Reader] = OrderedDict()
        self._warned = False

    def add(self, one: asyncio.BaseProtocol, transport: asyncio.Transport) -> None:
        """Add a connection whose buffer is full, and end others if all buffers hold too much."""
        self._readers[one] = reader = _Reader(transport, transport.get_write_buffer_size())
        self._check_later(one, reader)
        sizes = {one: reader.transport.get_write_buffer_size() for one, reader in self._readers.items()}
        while sum(sizes.values()) > MAX_UNREAD and len(sizes) > 1:
            oldest = next(iter(sizes))
            del sizes[oldest]
            self._warn()
            self._end(oldest)

    def remove(self, one: asyncio.BaseProtocol) -> None:
        """Remove a connection that has read its answer, or has ended."""
        reader = self._readers.pop(one, None)
        if reader is not None and reader.timer is not None:
            reader.timer.cancel()

    def _check_later(self, one: asyncio.BaseProtocol, reader: _Reader) -> None:
        reader.timer = asyncio.get_running_loop().call_later(READ_TIMEOUT, self._check, one, reader)

    def _check(self, one: asyncio.BaseProtocol, reader: _Reader) -> None:
        left = reader.transport.get_write_buffer_size()
        if left >= reader.left:
            self._end(one)
        else:
            reader.left = left
            self._check_later(one, reader)

    def _end(self, one: asyncio.BaseProtocol) -> None:
        transport = self._readers[one].transport
        self.remove(one)
        # Else the system would keep what it has not sent, some MB, until the caller reads it.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "answers that callers do not read hold more than %d MB: the connection that has not read for the "
                "longest time ends. This is logged once", MAX_UNREAD >> 20,
            )  # fmt: skip
