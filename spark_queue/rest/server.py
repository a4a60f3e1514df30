"""The server: an app on an address, until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from spark_queue.errors import OptionError
from spark_queue.rest.app import create_app
from spark_queue.rest.guard.address import check_address
from spark_queue.rest.guard.protocol import GuardedProtocol, raise_limit_of_files
from spark_queue.rest.settings import Settings

#: How long running requests may take at a shutdown (s); those that wait for messages end at once.
SHUTDOWN_GRACE = 10


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
    check_address(host, settings.credentials)
    for name, file in (("tls-cert", certificate), ("tls-key", key)):
        if file is not None and not file.is_file():
            raise OptionError(f"--{name} {file}: no such file", option=name)
    app = create_app(settings)

    class Protocol(GuardedProtocol):
        max_connections = raise_limit_of_files(len(settings.options))

    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="on", log_level="warning", access_log=False, server_header=False,
        date_header=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE, proxy_headers=False,
        ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip
    scheme = "http" if certificate is None else "https"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                on_started(f"{scheme}://{shown}")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.service.wait_list.shut_down()  # uvicorn would wait for waiting requests
            if sig == signal.SIGTERM:  # a normal shutdown: uvicorn would raise the signal again at its end
                self.should_exit = True
            else:
                super().handle_exit(sig, frame)

    with _open_socket(host, port) as listening:
        address, number = listening.getsockname()[:2]
        shown = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
        Server(config).run(sockets=[listening])


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OptionError(
            f"cannot listen on {host}:{port}: {why}; choose another --host or --port", option="port"
        ) from None
