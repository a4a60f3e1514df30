"""The server: an app on an address, until SIGINT or SIGTERM."""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from spark_queue.errors import OptionError
from spark_queue.rest.app import create_app
from spark_queue.rest.guard.acceptor import Acceptor
from spark_queue.rest.guard.address import check_address
from spark_queue.rest.guard.connections import BACKLOG, Connections, raise_limit_of_files
from spark_queue.rest.guard.protocol import GuardedProtocol
from spark_queue.rest.guard.unread import UnreadAnswers
from spark_queue.rest.settings import Settings

#: How long running requests may take at a shutdown (s); those that wait for messages end at once.
SHUTDOWN_GRACE = 10

#: How long a thread of Python may compute before others have a turn (s). The default, 5 ms, makes
#: short calls wait for long ones again and again.
SWITCH_INTERVAL = 0.001

#: Objects that are made before Python looks for garbage in circles, and how many such looks precede
#: one at older objects. It stops the server for as long as there are objects; with the defaults,
#: for 350 ms again and again while 3,000 callers connect.
GARBAGE_THRESHOLDS = 10_000, 50


def serve(
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 3444,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    on_started: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGINT or SIGTERM. `port` 0 is any free port.

    `on_started` is called with the URL when the server listens. With a `certificate` (PEM, and its
    `key` if that is in another file) it uses TLS. Raises `OptionError` if other machines could call
    without credentials, a file does not exist, or the address is not available.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    check_address(host, settings.credentials)
    for name, file in (("tls-cert", certificate), ("tls-key", key)):
        if file is not None and not file.is_file():
            raise OptionError(f"--{name} {file}: no such file", option=name)
    app = create_app(settings, look_process=os.name == "posix")

    accepted, unread = Connections(raise_limit_of_files(len(settings.options))), UnreadAnswers()
    context = None if certificate is None else _tls_context(certificate, key)
    config = uvicorn.Config(
        app, http=GuardedProtocol, ws="none", lifespan="on", log_level="warning", access_log=False,
        server_header=False, date_header=False, timeout_graceful_shutdown=SHUTDOWN_GRACE, proxy_headers=False,
    )  # fmt: skip
    scheme = "http" if certificate is None else "https"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup([])  # so that it accepts no connections itself
            gc.freeze()  # modules stay: they need no look
            if not self.should_exit:
                self.acceptor = Acceptor(listening, self.make_protocol, accepted, context)
                self.acceptor.start()
                on_started(f"{scheme}://{shown}")

        def make_protocol(self) -> GuardedProtocol:
            return GuardedProtocol(config, self.server_state, self.lifespan.state, accepted=accepted, unread=unread)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            self.acceptor.close()
            listening.close()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.service.wait_list.shut_down()  # uvicorn would wait for waiting requests
            if sig == signal.SIGTERM:  # a normal shutdown: uvicorn would raise the signal again at its end
                self.should_exit = True
            else:
                super().handle_exit(sig, frame)

    with _open_socket(host, port) as listening:
        address, number = listening.getsockname()[:2]
        shown = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
        Server(config).run(sockets=[])


def _tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise OptionError(
            f"--tls-cert {certificate}: {error.strerror or error}; it must be a certificate in PEM, with its key "
            "there or in --tls-key",
            option="tls-cert",
        ) from None
    return context


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OptionError(
            f"cannot listen on {host}:{port}: {why}; choose another --host or --port", option="port"
        ) from None
