"""Queues: sizes, statistics and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from spark_queue.cli.lazy import admin_sizes, queues
from spark_queue.cli.output import echo_err, format_duration, log_bar, print_json, print_table, print_text
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Queues, Url, app

if TYPE_CHECKING:
    from spark_queue.admin.sizes import QueueSummary

#: Columns of sizes, and the colours of their bars.
STATE_COLOURS = {"ready": "green", "scheduled": "blue", "reserved": "yellow", "dead": "red"}


@app.command(cls=Command)
def size(url: Url, queues: Queues = None, json: JsonFlag = False) -> None:
    """Show the number of messages by state."""
    found = admin_sizes.sizes(url, queues or ())
    if json:
        print_json(found)
    elif found:
        with_retained = any(one.retained for one in found)
        heads = ("queue", *STATE_COLOURS, *(["retained"] if with_retained else []), "oldest ready", "")
        print_table(heads, (size_row(one, with_retained=with_retained) for one in found))
    if not found:
        echo_err("this store has no queues")


def size_row(one: QueueSummary, *, with_retained: bool) -> Sequence[object]:
    """Return a row of the table of sizes; `with_retained`: with a column of retained messages."""
    numbers = [getattr(one, state) for state in STATE_COLOURS]
    return (
        one.queue,
        *numbers,
        *([one.retained] if with_retained else []),
        format_duration(one.oldest),
        state_bar(one),
    )


def state_bar(one: QueueSummary) -> Text:
    """Return the sizes as a bar in the colours of the states, marked if the queue is paused."""
    chart = Text()
    if one.paused:
        chart.append("paused ", style="bold red")
    for state, colour in STATE_COLOURS.items():
        chart.append(log_bar(getattr(one, state)), style=colour)
    return chart


@app.command(cls=Command)
def stats(url: Url, queues: Queues = None, json: JsonFlag = False) -> None:
    """Show statistics of queues.

    The numbers of messages pushed, popped, reserved, committed, … by all programs, since the queue
    exists.
    """
    found = admin_sizes.statistics(url, queues or ())
    if json:
        print_json(found)
    elif found:
        heads = (*admin_sizes.COUNTERS, "paused")
        print_table(
            ("queue", *heads),
            (
                (queue, *(one[name] for name in admin_sizes.COUNTERS), "yes" if one["paused"] else "")
                for queue, one in found.items()
            ),
        )
    if not found:
        echo_err("no statistics yet")


@app.command(cls=Command)
def pause(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Pause a queue: no client can reserve messages.

    It lasts until `resume`. Reserved messages can be settled, and pushes go on.
    """
    queues.pause(url, queue)
    if json:
        print_json({"queue": queue, "paused": True})
    else:
        print_text(f"{queue} is paused")


@app.command(cls=Command)
def resume(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Resume a paused queue."""
    queues.resume(url, queue)
    if json:
        print_json({"queue": queue, "paused": False})
    else:
        print_text(f"{queue} is resumed")
