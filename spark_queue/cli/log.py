"""Queues that are read as logs: show what they retain, and trim it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from spark_queue import admin
from spark_queue.cli.output import echo_err, print_items, print_result
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Url, app, argument, group, seconds
from spark_queue.errors import plural

log = group("Show and trim what queues with mode=log retain.")
app.add_typer(log, name="log")


@log.command("list", cls=Command)
def log_list(
    url: Url,
    queue: Annotated[str | None, argument("QUEUE", "The queue (default: all).")] = None,
    json: JsonFlag = False,
) -> None:
    """Show what the logs of queues retain."""
    found = admin.logs.logs(url, queue)
    heads = ("queue", "messages", "from position", "to", "segments", "oldest (UTC)")
    rows = ((one.queue, one.messages, one.first, one.end, one.segments, one.oldest) for one in found)
    print_items(found, heads, rows, json=json)
    if not found:
        echo_err(f"{queue or 'no queue'} is {'not ' if queue else ''}read as a log (mode=log)")


@log.command("trim", cls=Command)
def log_trim(
    url: Url,
    queue: QueueArgument,
    older_than: Annotated[
        Any, seconds("--older-than", "7d", "Remove messages that have been in the log for longer.")
    ],
    json: JsonFlag = False,
) -> None:
    """Remove old messages of a log.

    Queries that have not read them yet miss them.
    """
    removed = admin.logs.trim(url, queue, timedelta(seconds=older_than))
    text = f"{plural(removed, 'message')} removed from the log of {queue}"
    print_result({"queue": queue, "removed": removed}, text, json=json)
