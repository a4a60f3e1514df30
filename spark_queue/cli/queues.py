"""Queues: sizes, statistics and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from spark_queue.cli.lazy import levels, queues
from spark_queue.cli.output import age, bar, say, show, table, tell
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Queues, Url, app

if TYPE_CHECKING:
    from spark_queue.admin.sizes import Level

#: Columns of sizes, and the colours of their bars.
STATE_COLOURS = {"ready": "green", "scheduled": "blue", "reserved": "yellow", "dead": "red"}


@app.command(cls=Command)
def size(url: Url, queues: Queues = None, json: JsonFlag = False) -> None:
    """Show the number of messages by state."""
    found = levels.sizes(url, queues or ())
    if json:
        tell(found)
    elif found:
        kept = any(one.retained for one in found)
        heads = ("queue", *STATE_COLOURS, *(["retained"] if kept else []), "oldest ready", "")
        table(heads, (cells(one, kept=kept) for one in found))
    if not found:
        say("this store has no queues")


def cells(one: Level, *, kept: bool) -> Sequence[object]:
    """Return a row of the table of sizes; `with_retained`: with a column of retained messages."""
    numbers = [getattr(one, state) for state in STATE_COLOURS]
    return one.queue, *numbers, *([one.retained] if kept else []), age(one.oldest), picture(one)


def picture(one: Level) -> Text:
    """Return the sizes as a bar in the colours of the states, marked if the queue is paused."""
    drawn = Text()
    if one.paused:
        drawn.append("paused ", style="bold red")
    for state, colour in STATE_COLOURS.items():
        drawn.append(bar(getattr(one, state)), style=colour)
    return drawn


@app.command(cls=Command)
def stats(url: Url, queues: Queues = None, json: JsonFlag = False) -> None:
    """Show statistics of queues.

    The numbers of messages pushed, popped, reserved, committed, … by all programs, since the queue
    exists.
    """
    found = levels.statistics(url, queues or ())
    if json:
        tell(found)
    elif found:
        heads = (*levels.COUNTERS, "paused")
        table(
            ("queue", *heads),
            (
                (queue, *(one[name] for name in levels.COUNTERS), "yes" if one["paused"] else "")
                for queue, one in found.items()
            ),
        )
    if not found:
        say("no statistics yet")


@app.command(cls=Command)
def pause(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Pause a queue: no client can reserve messages.

    It lasts until `resume`. Reserved messages can be settled, and pushes go on.
    """
    queues.pause(url, queue)
    if json:
        tell({"queue": queue, "paused": True})
    else:
        show(f"{queue} is paused")


@app.command(cls=Command)
def resume(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Resume a paused queue."""
    queues.resume(url, queue)
    if json:
        tell({"queue": queue, "paused": False})
    else:
        show(f"{queue} is resumed")
