"""Queues: sizes, statistics and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from rich.text import Text

from spark_queue import admin
from spark_queue.cli.output import echo_err, format_duration, log_bar, print_items, print_result
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Queues, Url, app, flag
from spark_queue.errors import plural

#: Columns of sizes, and the colours of their bars.
STATE_COLOURS = {"ready": "green", "scheduled": "blue", "reserved": "yellow", "dead": "red"}


@app.command(cls=Command)
def size(
    url: Url,
    queues: Queues = None,
    exact: Annotated[bool, flag("--exact", help="Count all messages, however many there are.")] = False,
    every: Annotated[bool, flag("--all", help="Show empty queues, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show the number of messages by state.

    Counting ends at 10,000 messages of a state: 10,000+ means that there may be more. Without names
    it shows the queues that hold messages or are paused.
    """
    known = admin.sizes.sizes(url, queues or (), exact=exact)
    found = [one for one in known if queues or every or not one.idle]
    states = [*STATE_COLOURS]
    if any(one.retained for one in found):
        states.append("retained")
    heads = ("queue", *states, "oldest ready", "")
    print_items(found, heads, (_size_row(one, states) for one in found), json=json)
    if not known:
        echo_err("this store has no queues")
    elif hidden := len(known) - len(found):
        echo_err(f"{plural(hidden, 'empty queue')} not shown; to see them, set --all")


def _size_row(one: admin.sizes.QueueSummary, states: Sequence[str]) -> Sequence[object]:
    sizes = {state: getattr(one, state) for state in states}
    numbers = (f"{number:,}+" if state in one.capped else number for state, number in sizes.items())
    return one.queue, *numbers, format_duration(one.oldest), state_bar(one)


def state_bar(one: admin.sizes.QueueSummary) -> Text:
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
    found = admin.sizes.statistics(url, queues or ())
    names = admin.sizes.COUNTERS
    rows = ((queue, *(one[name] for name in names), "yes" if one["paused"] else "") for queue, one in found.items())
    print_items(found, ("queue", *names, "paused"), rows, json=json)
    if not found:
        echo_err("no statistics yet")


@app.command(cls=Command)
def pause(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Pause a queue: no client can reserve messages.

    It lasts until `resume`. Reserved messages can be settled, and pushes go on.
    """
    admin.queues.pause(url, queue)
    print_result({"queue": queue, "paused": True}, f"{queue} is paused", json=json)


@app.command(cls=Command)
def resume(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Resume a paused queue."""
    admin.queues.resume(url, queue)
    print_result({"queue": queue, "paused": False}, f"{queue} is resumed", json=json)
