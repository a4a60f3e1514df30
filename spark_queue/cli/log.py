"""Queues that are read as logs: what they retain, and how it is removed by word."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.late import logs
from spark_queue.cli.parse import Command, Json, Queue, Url, app, argument, group, option, seconds
from spark_queue.cli.show import plural, say, show, table, tell

if TYPE_CHECKING:
    from spark_queue.operations.logs import Kept

log = group("Queues that are read with mode=log: what they retain.")
app.add_typer(log, name="log")


@log.command("list", cls=Command)
def log_list(
    url: Url,
    queue: Annotated[str | None, argument("QUEUE", "The queue (default: all).")] = None,
    json: Json = False,
) -> None:
    """Show what queues retain as logs."""
    found = logs.logs(url, queue)
    if json:
        tell(found)
    elif found:
        table(("queue", "messages", "from position", "to", "segments", "oldest (UTC)"), map(_kept, found))
    if not found:
        say(f"{queue or 'no queue'} is{' not' if queue else ''} read as a log")


def _kept(one: Kept) -> Sequence[object]:
    return one.queue, one.messages, one.first, one.end, one.segments, one.oldest


@log.command("trim", cls=Command)
def log_trim(
    url: Url,
    queue: Queue,
    older_than: Annotated[Any, option("--older-than", "7d", "What was put into the log longer ago.", parser=seconds)],
    json: Json = False,
) -> None:
    """Remove what has been in a log for long, whoever has not read it yet."""
    removed = logs.trim(url, queue, timedelta(seconds=older_than))
    if json:
        tell({"queue": queue, "removed": removed})
    else:
        show(f"{plural(removed, 'message')} of the log of {queue} removed")
