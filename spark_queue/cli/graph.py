"""Graphs of exchanges, drawn."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_queue.cli.late import operations
from spark_queue.cli.parse import Json, app, argument, option
from spark_queue.cli.show import printable, say, tell
from spark_queue.errors import UsageError


class Form(StrEnum):
    """How a graph is drawn."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"


@app.command("graph")
def graph_of(
    conf: Annotated[Path, argument("CONF", "The file that declares the graph.")],
    form: Annotated[
        Form, option("--format", "FORM", "tree, mermaid, dot or svg (which needs Graphviz).")
    ] = Form.tree,
    output: Annotated[Path | None, option("--output", "FILE", "Write it here (default: stdout).")] = None,
    sizes: Annotated[bool, typer.Option(help="Whether to look how many messages the queues hold.")] = True,
    json: Json = False,
) -> None:
    """Draw a graph of exchanges."""
    try:
        from spark_queue import graph_picture
        from spark_queue.graph_file import graph_in
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing}; install it with: pip install 'spark-queue[graph]'") from None
    try:
        graph = graph_in(conf)
    except OSError as error:
        raise UsageError(f"{conf}: {error.strerror}") from None
    known, unknown = operations.graph_sizes(graph) if sizes else (None, [])
    for one in unknown:
        say(f"spark-queue: {one}")
    for cycle in graph.cycles():
        say(f"a cycle, which messages leave after {graph.max_hops} hops: {' → '.join([*cycle, cycle[0]])}")
    if json:
        tell(graph_picture.facts(graph, known))
        return
    if form is Form.svg:
        drawn = graph_picture.svg(graph, known)
    elif form is Form.dot:
        drawn = graph_picture.dot(graph, known).source
    elif form is Form.mermaid:
        drawn = graph_picture.mermaid(graph, known)
    else:
        drawn = "".join(f"{'  ' * depth}{printable(text)}\n" for depth, text in graph_picture.tree(graph, known))
    if output is None:
        sys.stdout.write(drawn)
    else:
        output.write_text(drawn, encoding="utf-8")
