"""Draw graphs of exchanges."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_queue.cli.lazy import operations
from spark_queue.cli.output import printable, say, tell
from spark_queue.cli.params import JsonFlag, Plain, app, argument, option
from spark_queue.errors import UsageError, plural, unreadable


class DrawingForm(StrEnum):
    """The formats of a drawing."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"


@app.command("graph", cls=Plain)
def graph_of(
    conf: Annotated[Path, argument("CONF", "The YAML or JSON file of the graph.")],
    form: Annotated[
        DrawingForm, option("--format", "FORM", "tree (default), mermaid, dot, or svg, which needs Graphviz.")
    ] = DrawingForm.tree,
    output: Annotated[Path | None, option("--output", "FILE", "The file to write (default: stdout).")] = None,
    sizes: Annotated[bool, typer.Option(help="Show the sizes of the queues.")] = True,
    json: JsonFlag = False,
) -> None:
    """Draw a graph of exchanges, links and processors."""
    try:
        from spark_queue.graph import rendering as graph_picture
        from spark_queue.graph.loader import graph_in
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing}; install it with: pip install 'spark-queue[graph]'") from None
    try:
        graph = graph_in(conf)
    except OSError as error:
        raise unreadable(error, conf) from None
    known, unknown = operations.graph_sizes(graph) if sizes else (None, [])
    for one in unknown:
        say(f"spark-queue: {one}")
    for cycle in graph.cycles():
        say(f"cycle {' → '.join([*cycle, cycle[0]])}: a message leaves it after {plural(graph.max_hops, 'hop')}")
    if json:
        tell(graph_picture.facts(graph, known))
        return
    if form is DrawingForm.svg:
        drawn = graph_picture.svg(graph, known)
    elif form is DrawingForm.dot:
        drawn = graph_picture.dot(graph, known).source
    elif form is DrawingForm.mermaid:
        drawn = graph_picture.mermaid(graph, known)
    else:
        drawn = "".join(f"{'  ' * depth}{printable(text)}\n" for depth, text in graph_picture.tree(graph, known))
    if output is None:
        sys.stdout.write(drawn)
    else:
        output.write_text(drawn, encoding="utf-8")
