"""The history of a queue: show it, and replay it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spark_queue import admin
from spark_queue.cli.output import LIST_ROWS, echo_err, print_list, print_result, shorten, shorten_payload
from spark_queue.cli.params import (
    Command,
    Create,
    Ids,
    JsonFlag,
    QueueArgument,
    Reason,
    Url,
    app,
    argument,
    flag,
    moment,
    number,
    option,
    since,
)
from spark_queue.errors import OptionError, plural

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
ProcessedSince = Annotated[Any, since("processed")]
ProcessedUntil = Annotated[Any, moment("--until", "Only those processed before that.")]


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
    limit: Annotated[int, number("--limit", f"Maximum number: the latest (default: {LIST_ROWS}).")] = LIST_ROWS,
    after: Annotated[
        str | None,
        option("--after", "CURSOR", "Show a page in the order of the database instead; `start`: the first one."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the messages that a queue has processed, latest last.

    A queue keeps them if its readers set the option `history`, or by `commit --history`. The latest
    are found by reading all of it. With `--after` only a page is read, and the cursor of the next
    one is printed to standard error.
    """
    heads = ("id", "processed (UTC)", "by", "outcome", "tries", "error", "payload")
    if after is not None:
        if any(one is not None for one in (id, consumer, outcome, reason, since, until)):
            raise OptionError("--after reads a page of all messages: leave the filters out", option="after")
        page = admin.browse_history(url, queue, limit, None if after == "start" else after)
        print_list(page.entries, limit, "message", heads, _history_row, json=json)
        if page.after is not None:
            echo_err(f"to read on: --after {page.after}")
        return
    found = admin.history(
        url, queue, ids=id, consumer=consumer, outcome=outcome, reason=reason, since=since, until=until,
        limit=limit + 1,
    )  # fmt: skip
    print_list(found, limit, "message", heads, _history_row, json=json, last=True)
    if not found:
        echo_err(f"the history of {queue} has no messages of this kind{admin.suggest(url, queue)}")


def _history_row(one: admin.HistoryEntry) -> Sequence[object]:
    texts = shorten(one.error or ""), shorten_payload(one.payload)
    return one.id, one.processed, one.consumer, one.outcome, one.tries, *texts


@app.command(cls=Command)
def replay(
    url: Url,
    queue: QueueArgument,
    name: Annotated[str, argument("NAME", "A name for this replay: one with the same name is done only once.")],
    to: Annotated[str | None, option("--to", "Q", "The queue to push them to (default: the same queue).")] = None,
    create: Create = False,
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
    limit: Annotated[int | None, number("--limit", "Maximum number: the latest.")] = None,
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
    target = to or queue
    text = f"{plural(pushed, 'message')} of {queue} {'would be ' if dry_run else ''}pushed to {target}"
    print_result({"queue": queue, "name": name, "to": target, "dry_run": dry_run, "pushed": pushed}, text, json=json)
