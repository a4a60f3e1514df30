"""Reservations: show and release them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from spark_queue import admin
from spark_queue.cli.output import confirm, echo_err, print_items, print_result
from spark_queue.cli.params import (
    Command,
    DelayOption,
    JsonFlag,
    QueueArgument,
    Url,
    Yes,
    app,
    argument,
    flag,
    option,
)
from spark_queue.errors import plural


@app.command(cls=Command)
def reservations(
    url: Url,
    queue: Annotated[str | None, argument("QUEUE", "The name of the queue (default: all).")] = None,
    json: JsonFlag = False,
) -> None:
    """Show reservations: tag, consumer, end of the lease."""
    held = admin.reservations(url, queue)
    print_items(held, ("queue", "tag", "messages", "lease ends (UTC)", "run by"), _reservation_rows(held), json=json)
    if not held:
        echo_err(f"no messages are reserved{f' in {queue}{admin.suggest(url, queue)}' if queue else ''}")


def _reservation_rows(held: Sequence[admin.ReservationInfo]) -> Iterator[Sequence[object]]:
    """Yield a row for each tag, but one row for all tags of a log."""
    logs = Counter({one.queue: 0 for one in held if one.log})
    for one in held:
        if one.log:
            logs[one.queue] += one.rows
        else:
            yield one.queue, one.tag, one.rows, one.until or "never", "(damaged)" if one.damaged else one.owner
    for queue, rows in logs.items():
        yield queue, "log", rows, "never", "retained"


@app.command(cls=Command)
def release(
    url: Url,
    queue: QueueArgument,
    tag: Annotated[
        str,
        argument(
            "TAG",
            "A consumer (etl), one run of it (etl/3fa9c1), a batch (etl/3fa9c1/7.2), a partition (etl/3fa9c1/7.2/0).",
        ),
    ],
    force: Annotated[
        bool, flag("--force", help="Also if a running query holds them; that query then fails.")
    ] = False,
    failed: Annotated[bool, flag("--failed", help="Count one more failed try for each message.")] = False,
    delay: DelayOption = "0s",
    yes: Yes = False,
    json: JsonFlag = False,
) -> None:
    """Return reserved messages to the queue, by tag.

    A tag includes all tags below it: `etl` includes `etl/3fa9c1/7.2/0`.
    """
    if not yes:
        held = admin.reservations(url, queue, tag)
        refused = any(one.log or (one.owner and not force) for one in held)
        if held and not refused:
            confirm(f"Release {plural(sum(one.rows for one in held), 'message')} of {queue} held under tag {tag}?")
    released = admin.release(url, queue, tag, force=force, failed=failed, delay=delay)
    text = f"{plural(released, 'message')} of {queue} released"
    print_result({"queue": queue, "tag": tag, "released": released}, text, json=json)
    if not released:
        echo_err(f"tag {tag} holds no messages of {queue}{admin.suggest(url, queue, tag)}")


@app.command(cls=Command)
def recover(
    url: Url,
    queue: QueueArgument,
    consumer: Annotated[str, argument("CONSUMER", "One run of a consumer, as `reservations` shows it: etl/3fa9c1.")],
    sink: Annotated[
        list[str] | None,
        option("--sink", "URL", "The database that the query wrote to; its ledger names the last batch; repeatable."),
    ] = None,
    written: Annotated[
        bool | None,
        flag("--written/--not-written", help="Whether the sink has the last batch, if it is not a queue."),
    ] = None,
    yes: Yes = False,
    json: JsonFlag = False,
) -> None:
    """Settle the messages of a query that cannot be started again.

    Commits the last batch if its sink has it, and releases the rest.
    """
    if not yes:
        held = admin.reservations(url, queue, consumer)
        if held and not any(one.owner for one in held):
            confirm(f"Settle {plural(sum(one.rows for one in held), 'message')} of {queue} held by {consumer}?")
    done = admin.recover_consumer(url, queue, consumer, sink=sink, written=written)
    text = f"{plural(done.committed, 'message')} committed, {done.released:,} released"
    print_result({"queue": queue, "consumer": consumer, **asdict(done)}, text, json=json)
