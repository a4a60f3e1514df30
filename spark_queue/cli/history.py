"""The history of a queue: show it, and replay it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spark_queue.cli.lazy import admin
from spark_queue.cli.messages import payload_text
from spark_queue.cli.output import LIST_ROWS, echo_err, print_json, print_list, print_text, shorten
from spark_queue.cli.params import (
    Command,
    Ids,
    JsonFlag,
    QueueArgument,
    Reason,
    Url,
    app,
    argument,
    flag,
    option,
    parse_moment,
)
from spark_queue.errors import plural

# Which messages.
ConsumerOption = Annotated[
    str | None, option("--consumer", "NAME", "Only those of this consumer (the first part of the tag).")
]
OutcomeOption = Annotated[
    str | None,
    option(
        "--outcome",
        "HOW",
        "Only those with this outcome: commit, dead, pop or remove (by keuss programs), finished or failed (events).",
    ),
]
ProcessedSince = Annotated[
    Any,
    option(
        "--since",
        "WHEN",
        "Only those processed since 2026-01-31T12:00 (UTC), or in the last 2h.",
        parser=parse_moment,
    ),
]
ProcessedUntil = Annotated[Any, option("--until", "WHEN", "Only those processed before that.", parser=parse_moment)]


@app.command(cls=Command)
def history(
    url: Url,
    queue: QueueArgument,
    id: Ids = None,
    consumer: ConsumerOption = None,
    outcome: OutcomeOption = None,
    reason: Reason = None,
    since: ProcessedSince = None,
    until: ProcessedUntil = None,
    limit: Annotated[
        int, option("--limit", "N", f"Maximum number: the latest (default: {LIST_ROWS}).", min=1)
    ] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show the messages that a queue has processed, latest last.

    A queue keeps them if its readers set the option `history`, or by `commit --history`.
    """
    found = admin.history(
        url, queue, ids=id, consumer=consumer, outcome=outcome, reason=reason, since=since, until=until,
        limit=limit + 1,
    )  # fmt: skip
    heads = ("id", "processed (UTC)", "by", "outcome", "tries", "error", "payload")
    print_list(found, limit, "message", heads, _history_row, json=json, last=True)
    if not found:
        echo_err(f"the history of {queue} has no messages of this kind{admin.suggest(url, queue)}")


def _history_row(one: Any) -> Sequence[object]:
    return one.id, one.processed, one.consumer, one.outcome, one.tries, shorten(one.error or ""), payload_text(one)


@app.command(cls=Command)
def replay(
    url: Url,
    queue: QueueArgument,
    name: Annotated[str, argument("NAME", "A name for this replay: one with the same name is done only once.")],
    to: Annotated[str | None, option("--to", "Q", "The queue to push them to (default: the same queue).")] = None,
    create: Annotated[bool, flag("--create", help="Create that queue if it does not exist.")] = False,
    rate: Annotated[
        float | None, option("--rate", "N", "Number of messages that become ready per second (default: all at once).")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Show how many would be pushed, and push nothing.")] = False,
    id: Ids = None,
    consumer: ConsumerOption = None,
    outcome: OutcomeOption = None,
    reason: Reason = None,
    since: ProcessedSince = None,
    until: ProcessedUntil = None,
    limit: Annotated[int | None, option("--limit", "N", "Maximum number: the latest.", min=1)] = None,
    json: JsonFlag = False,
) -> None:
    """Push processed messages again, as new messages.

    All are pushed, or none. If a replay was interrupted, repeat the call with the same NAME to push
    the rest.
    """
    pushed = admin.replay(
        url, queue, name, to=to, create=create, rate=rate, dry_run=dry_run, ids=id, consumer=consumer,
        outcome=outcome, reason=reason, since=since, until=until, limit=limit,
    )  # fmt: skip
    if json:
        print_json({"queue": queue, "name": name, "to": to or queue, "dry_run": dry_run, "pushed": pushed})
    else:
        print_text(f"{plural(pushed, 'message')} of {queue} {'would be ' if dry_run else ''}pushed to {to or queue}")
