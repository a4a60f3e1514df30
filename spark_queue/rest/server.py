"""The server: an app on an address, until it is told to end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from spark_queue.errors import OptionError
from spark_queue.rest.app import create_app
from spark_queue.rest.settings import Settings, check_address

#: Seconds that requests get to end once the server is to end; those that wait for messages end at once.
GRACE = 10


def serve(
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 3444,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGINT or SIGTERM. `port` 0 is any free one; `started` is told the URL, once it listens.

    With a `certificate` (PEM, and its `key` if that is in another file) it speaks TLS. Raises `OptionError` where
    others than this machine could call without saying who they are, and where the address cannot be had.
    """
    check_address(host, settings.credentials)
    for name, file in (("tls-cert", certificate), ("tls-key", key)):
        if file is not None and not file.is_file():
            raise OptionError(f"--{name} {file}: there is no such file", option=name)
    app = create_app(settings)
    config = uvicorn.Config(
        app, lifespan="on", log_level="warning", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=GRACE, proxy_headers=False,
        ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip
    scheme = "http" if certificate is None else "https"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                started(f"{scheme}://{shown}")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.service.lines.end()  # uvicorn would wait for those who wait
            if sig == signal.SIGTERM:  # the usual end: uvicorn would send the signal again when all is done
                self.should_exit = True
            else:
                super().handle_exit(sig, frame)

    with _listening(host, port) as listening:
        address, number = listening.getsockname()[:2]
        shown = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
        Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OptionError(f"{host}:{port} cannot be listened at: {error.strerror or error}", option="port") from None
