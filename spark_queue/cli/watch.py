"""Show sizes and rates of queues live."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from spark_queue import admin
from spark_queue.cli.output import build_table, console, format_duration, format_rate, print_json_line, sparkline
from spark_queue.cli.params import Command, JsonLines, Queues, Url, app, number, seconds
from spark_queue.cli.queues import STATE_COLOURS, state_bar

#: Number of updates in the chart of a queue.
CHART_LENGTH = 30

HEADS = ("queue", *STATE_COLOURS, "pushed/s", "done/s", "change/s", "oldest ready", "")


@app.command(cls=Command)
def watch(
    url: Url,
    queues: Queues = None,
    interval: Annotated[Any, seconds("--interval", "2s", "Time between two updates (default: 2s).")] = "2s",
    count: Annotated[int | None, number("--count", "Number of updates (default: until Ctrl-C).")] = None,
    json: JsonLines = False,
) -> None:
    """Show sizes and rates of queues live."""
    from rich.live import Live  # so that other commands start faster

    past: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=CHART_LENGTH))
    updates = admin.sizes.watch(url, queues or (), interval=interval)
    live = Live(console=console(), auto_refresh=False) if sys.stdout.isatty() and not json else None
    with live or nullcontext():
        for done, rates in enumerate(updates, 1):
            for one in rates:
                past[one.summary.queue].append(one.summary.total)
            if json:
                at = rates[0].at if rates else None
                print_json_line({"at": at, "queues": [rates_to_json(one) for one in rates]})
            else:
                shown = build_table(HEADS, [rate_row(one, past[one.summary.queue]) for one in rates])
                live.update(shown, refresh=True) if live else console().print(shown)
            sys.stdout.flush()
            if done == count:
                break


def rate_row(one: admin.sizes.QueueRates, past: Sequence[int]) -> Sequence[object]:
    """Return a row of the table; `past`: the sizes of the last updates, for the chart."""
    level = one.summary
    sizes = (getattr(level, state) for state in STATE_COLOURS)
    rates = (format_rate(one.pushed), format_rate(one.done), format_rate(one.change, sign=True))
    chart = state_bar(level).append(f" {sparkline(past)}", "cyan")
    return level.queue, *sizes, *rates, format_duration(level.oldest), chart


def rates_to_json(one: admin.sizes.QueueRates) -> dict[str, object]:
    """Return the JSON form of a queue."""
    level = one.summary
    return {
        "queue": level.queue, **{state: getattr(level, state) for state in STATE_COLOURS}, "oldest": level.oldest,
        "paused": level.paused, "pushed": one.pushed, "done": one.done, "change": one.change,
    }  # fmt: skip
