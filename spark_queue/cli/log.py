"""Queues that are read as logs: show what they retain, and trim it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.lazy import logs
from spark_queue.cli.output import echo_err, print_json, print_table, print_text
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Url, app, argument, group, option, parse_seconds
from spark_queue.errors import plural

if TYPE_CHECKING:
    from spark_queue.admin.logs import RetainedLog

log = group("Show and trim what queues with mode=log retain.")
app.add_typer(log, name="log")


@log.command("list", cls=Command)
def log_list(
    url: Url,
    queue: Annotated[str | None, argument("QUEUE", "The queue (default: all).")] = None,
    json: JsonFlag = False,
) -> None:
    """Show what the logs of queues retain."""
    found = logs.logs(url, queue)
    if json:
        print_json(found)
    elif found:
        print_table(("queue", "messages", "from position", "to", "segments", "oldest (UTC)"), map(_log_row, found))
    if not found:
        echo_err(f"{queue or 'no queue'} is {'not ' if queue else ''}read as a log (mode=log)")


def _log_row(one: RetainedLog) -> Sequence[object]:
    return one.queue, one.messages, one.first, one.end, one.segments, one.oldest


@log.command("trim", cls=Command)
def log_trim(
    url: Url,
    queue: QueueArgument,
    older_than: Annotated[
        Any,
        option("--older-than", "7d", "Remove messages that have been in the log for longer.", parser=parse_seconds),
    ],
    json: JsonFlag = False,
) -> None:
    """Remove old messages of a log.

    Queries that have not read them yet miss them.
    """
    removed = logs.trim(url, queue, timedelta(seconds=older_than))
    if json:
        print_json({"queue": queue, "removed": removed})
    else:
        print_text(f"{plural(removed, 'message')} removed from the log of {queue}")
