"""Serve queues over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.output import echo_err
from spark_queue.cli.params import BaseCommand, app, flag, number, option, seconds
from spark_queue.errors import OptionError, UsageError, unreadable_file
from spark_queue.options.masking import mask

if TYPE_CHECKING:
    from spark_queue.graph.model import Graph


@app.command(cls=BaseCommand)
def serve(
    graph: Annotated[
        Path | None, option("--graph", "FILE", "Serve the namespaces and exchanges of this graph file.")
    ] = None,
    url: Annotated[
        list[str] | None,
        option(
            "--url", "NAME=URL", "Serve this store as namespace NAME; repeatable.", envvar="SPARK_QUEUE_REST_URLS"
        ),
    ] = None,
    run: Annotated[bool, flag("--run", help="Run the exchanges in Spark, and those that callers create.")] = False,
    checkpoint_root: Annotated[
        str | None,
        option(
            "--checkpoint-root",
            "PATH",
            "With --run: the folder of the checkpoints, which all servers of the graph "
            "share (default: checkpoints/ and the name of FILE).",
        ),
    ] = None,
    events: Annotated[
        str | None, option("--events", "NAME/QUEUE", "Serve the events of this queue, in the form of hub-queue.")
    ] = None,
    declared: Annotated[
        list[Path] | None,
        option("--conf", "FILE", "A file with executors, heartbeats or settings of the events; repeatable."),
    ] = None,
    host: Annotated[str, option("--host", "ADDRESS", "Address to listen on (default: 127.0.0.1).")] = "127.0.0.1",
    port: Annotated[
        int, option("--port", "N", "Port to listen on; 0: any free one (default: 3444).", min=0, max=65535)
    ] = 3444,
    token_file: Annotated[
        Path | None,
        option("--token-file", "FILE", "Bearer tokens, one a line. $SPARK_QUEUE_REST_TOKEN may hold another."),
    ] = None,
    users_file: Annotated[
        Path | None,
        option(
            "--users-file",
            "FILE",
            "Users, one user:HASH a line, as htpasswd -B writes it. $SPARK_QUEUE_REST_USER may hold another.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, option("--tls-cert", "FILE", "Use TLS with this certificate (PEM).")] = None,
    tls_key: Annotated[
        Path | None, option("--tls-key", "FILE", "The key of the certificate, if it is in another file.")
    ] = None,
    max_body: Annotated[
        int, option("--max-body", "BYTES", "Maximum size of a request body (default: 16 MiB).", min=1)
    ] = 16 << 20,
    max_batch: Annotated[
        int, number("--max-batch", "Maximum number of messages in a request (default: 10000).")
    ] = 10_000,
    max_wait: Annotated[
        Any,
        seconds("--max-wait", "10m", "Longest time that a request may wait for a message (default: 10m)."),
    ] = "10m",
    open_metrics: Annotated[
        bool, flag("--open-metrics", help="Answer /metrics without credentials, as keuss-server does.")
    ] = False,
    metrics_queues: Annotated[
        int,
        number(
            "--metrics-queues",
            "Number of queues that /metrics names, the busiest; the others are summed (default: 1000).",
        ),
    ] = 1_000,
) -> None:
    """Serve queues over HTTP, until Ctrl-C or SIGTERM.

    Any address but a loopback one needs tokens or users.
    """
    try:
        from spark_queue.events.config import declared_in
        from spark_queue.rest import Credentials, Limits, Settings
        from spark_queue.rest.server import serve as serve_until_stopped
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing}; install it with: pip install 'spark-queue[rest]'") from None
    try:
        declarations = declared_in(*declared or ())
    except OSError as error:
        raise unreadable_file(error) from None
    if checkpoint_root is not None and not run:
        raise OptionError("--checkpoint-root is for --run: add --run, or leave it out", option="checkpoint-root")
    if any(mask(one) != one and one in word for one in map(url_of, url or ()) for word in sys.argv):
        echo_err(
            "warning: other users of this machine can see the password in --url (ps shows it): use the environment "
            "variable SPARK_QUEUE_REST_URLS"
        )
    settings = Settings(
        graph=build_graph(graph, url or ()),
        credentials=Credentials.read(os.environ, token_file, users_file),
        events=events,
        declared=declarations,
        checkpoint_root=(checkpoint_root or str(Path("checkpoints", graph.stem if graph else "serve")))
        if run
        else None,
        open_metrics=open_metrics,
        metrics_queues=metrics_queues,
        limits=Limits(max_body, max_batch, round(max_wait * 1000)),
    )
    if run:
        start_spark()
    serve_until_stopped(
        settings, host, port, certificate=tls_cert, key=tls_key, on_started=lambda at: echo_err(f"serving at {at}")
    )


def start_spark() -> None:
    """Create the Spark session of the server. Raises `UsageError` if pyspark or Java is missing."""
    try:
        from spark_queue.runner.server_spark import open_session
    except ModuleNotFoundError as missing:
        raise UsageError(f"--run: {missing}; install it with: pip install 'spark-queue[spark]'") from None
    open_session()


def url_of(text: str) -> str:
    """Return the URL of NAME=URL."""
    return text.partition("=")[2]


def build_graph(file: Path | None, urls: Sequence[str]) -> Graph:
    """Return the graph of a file, with the namespaces of `--url`.

    Raises `OptionError` for a wrong `--url`, and `UsageError` if the file cannot be read.
    """
    from spark_queue.graph.loader import load_graph
    from spark_queue.graph.model import Graph, Namespace

    try:
        graph = Graph({}) if file is None else load_graph(file)
    except OSError as error:
        raise unreadable_file(error, file) from None
    namespaces = dict(graph.namespaces)
    for one in urls:
        name, sign, url = one.partition("=")
        if not name or not sign or "://" not in url or "://" in name:
            shown = f" {name!r}" if sign and not set(name) & set(":@/") else ""  # no URL: it may have a password
            raise OptionError(f"--url{shown} must be NAME=URL, such as local=sqlite:///queues.db", option="url")
        if name in namespaces:
            raise OptionError(
                f"--url {name!r}: there is a namespace of that name already; choose another name", option="url"
            )
        namespaces[name] = Namespace(url)
    return replace(graph, namespaces=namespaces)
