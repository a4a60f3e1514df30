"""Who holds what, and how it is given back by word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.late import operations
from spark_queue.cli.parse import Command, Json, Queue, Url, Yes, app, argument, flag, option, seconds
from spark_queue.cli.show import confirm, plural, say, show, table, tell

if TYPE_CHECKING:
    from spark_queue.operations import Held


@app.command(cls=Command)
def reservations(
    url: Url,
    queue: Annotated[str | None, argument("QUEUE", "The queue (default: all).")] = None,
    json: Json = False,
) -> None:
    """Show what is reserved, and by whom."""
    held = operations.reservations(url, queue)
    if json:
        tell(held)
    elif held:
        table(("queue", "tag", "messages", "lease ends (UTC)", "run by"), _reserved(held))
    if not held:
        say(f"nothing is reserved{f' in {queue}{operations.suggest(url, queue)}' if queue else ''}")


def _reserved(held: Sequence[Held]) -> Iterator[Sequence[object]]:
    """A row for each tag, but one for all of a log."""
    logs = Counter({one.queue: 0 for one in held if one.log})
    for one in held:
        if one.log:
            logs[one.queue] += one.rows
        else:
            yield one.queue, one.tag, one.rows, one.until or "never", one.owner
    for queue, rows in logs.items():
        yield queue, "log", rows, "never", "retained"


@app.command(cls=Command)
def release(
    url: Url,
    queue: Queue,
    tag: Annotated[
        str, argument("TAG", "A consumer (etl), a run of it (etl/3fa9c1), a batch (…/7), a partition (…/7/0).")
    ],
    force: Annotated[bool, flag("--force", help="Take it away from a living query, too, which then fails.")] = False,
    failed: Annotated[bool, flag("--failed", help="Count one more failed try.")] = False,
    delay: Annotated[Any, option("--delay", "10s", "Nobody can reserve them before that.", parser=seconds)] = "0s",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Give back what a tag and those below it hold."""
    if not yes:
        held = operations.reservations(url, queue, tag)
        refused = any(one.log or (one.owner and not force) for one in held)
        if held and not refused:
            confirm(f"Give back {plural(sum(one.rows for one in held), 'message')} of {queue} held under {tag}?")
    released = operations.release(url, queue, tag, force=force, failed=failed, delay=delay)
    if json:
        tell({"queue": queue, "tag": tag, "released": released})
    else:
        show(f"{plural(released, 'message')} of {queue} given back")
    if not released:
        say(f"nothing is held under {tag}{operations.suggest(url, queue, tag)}")
