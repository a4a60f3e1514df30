"""Draw graphs of exchanges."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_queue import admin
from spark_queue.cli.output import echo_err, print_json, printable
from spark_queue.cli.params import BaseCommand, JsonFlag, app, argument, option
from spark_queue.errors import UsageError, plural, unreadable_file


class DrawingForm(StrEnum):
    """The formats of a drawing."""

    tree = "tree"
    dot = "dot"
    svg = "svg"


@app.command("graph", cls=BaseCommand)
def draw_graph(
    conf: Annotated[Path, argument("CONF", "The YAML or JSON file of the graph.")],
    form: Annotated[
        DrawingForm, option("--format", "FORM", "tree (default), dot, or svg, which needs Graphviz.")
    ] = DrawingForm.tree,
    output: Annotated[Path | None, option("--output", "FILE", "The file to write (default: stdout).")] = None,
    sizes: Annotated[bool, typer.Option(help="Show the sizes of the queues.")] = True,
    json: JsonFlag = False,
) -> None:
    """Draw a graph of exchanges, links and processors."""
    try:
        from spark_queue.graph import rendering
        from spark_queue.graph.loader import load_graph
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing}; install it with: pip install 'spark-queue[graph]'") from None
    try:
        graph = load_graph(conf)
    except OSError as error:
        raise unreadable_file(error, conf) from None
    known_sizes, unknown = admin.graph_sizes(graph) if sizes else (None, [])
    for one in unknown:
        echo_err(f"spark-queue: {one}")
    for cycle in graph.cycles():
        echo_err(f"cycle {' → '.join([*cycle, cycle[0]])}: a message leaves it after {plural(graph.max_hops, 'hop')}")
    if json:
        print_json(rendering.to_json(graph, known_sizes))
        return
    if form is DrawingForm.svg:
        drawn = rendering.svg(graph, known_sizes)
    elif form is DrawingForm.dot:
        drawn = rendering.dot(graph, known_sizes).source
    else:
        drawn = "".join(f"{'  ' * depth}{printable(text)}\n" for depth, text in rendering.tree(graph, known_sizes))
    if output is None:
        sys.stdout.write(drawn)
    else:
        output.write_text(drawn, encoding="utf-8")
