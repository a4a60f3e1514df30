"""Show sizes and rates of queues live."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.lazy import levels
from spark_queue.cli.output import age, console, line, made_table, rate, sparks
from spark_queue.cli.params import Command, JsonLines, Queues, Url, app, option, seconds
from spark_queue.cli.queues import STATE_COLOURS, picture

if TYPE_CHECKING:
    from spark_queue.admin.sizes import Flow

#: Number of updates in the chart of a queue.
PAST = 30

HEADS = ("queue", *STATE_COLOURS, "pushed/s", "done/s", "change/s", "oldest ready", "")


@app.command(cls=Command)
def watch(
    url: Url,
    queues: Queues = None,
    interval: Annotated[
        Any, option("--interval", "2s", "Time between two updates (default: 2s).", parser=seconds)
    ] = "2s",
    count: Annotated[int | None, option("--count", "N", "Number of updates (default: until Ctrl-C).", min=1)] = None,
    json: JsonLines = False,
) -> None:
    """Show sizes and rates of queues live."""
    from rich.live import Live  # so that other commands start faster

    past: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=PAST))
    looks = levels.watch(url, queues or (), interval=interval)
    live = Live(console=console(), auto_refresh=False) if sys.stdout.isatty() and not json else None
    with live or nullcontext():
        for number, flows in enumerate(looks, 1):
            for one in flows:
                past[one.level.queue].append(one.level.total)
            if json:
                line({"at": flows[0].at if flows else None, "queues": [facts(one) for one in flows]})
                sys.stdout.flush()
            else:
                shown = made_table(HEADS, [cells(one, past[one.level.queue]) for one in flows])
                live.update(shown, refresh=True) if live else console().print(shown)
                sys.stdout.flush()
            if number == count:
                break


def cells(one: Flow, past: Sequence[int]) -> Sequence[object]:
    """Return a row of the table; `past`: the sizes of the last updates, for the chart."""
    level = one.level
    sizes = (getattr(level, state) for state in STATE_COLOURS)
    change = rate(one.change, sign=True)
    chart = picture(level).append(f" {sparks(past)}", "cyan")
    return level.queue, *sizes, rate(one.pushed), rate(one.done), change, age(level.oldest), chart


def facts(one: Flow) -> dict[str, object]:
    """Return the JSON form of a queue."""
    level = one.level
    return {
        "queue": level.queue, **{state: getattr(level, state) for state in STATE_COLOURS}, "oldest": level.oldest,
        "paused": level.paused, "pushed": one.pushed, "done": one.done, "change": one.change,
    }  # fmt: skip
