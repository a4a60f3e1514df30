"""What a queue has processed: shown, and pushed once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spark_queue.cli.late import operations
from spark_queue.cli.messages import text
from spark_queue.cli.parse import Command, Ids, Json, Queue, Url, app, argument, flag, moment, option
from spark_queue.cli.show import LONG, cut, listed, plural, say, show, tell

# Which messages are meant.
Consumer = Annotated[str | None, option("--consumer", "NAME", "Who had them: the first part of the tag.")]
Went = Annotated[
    str | None,
    option(
        "--outcome",
        "HOW",
        "commit, dead, by keuss' own programs pop, remove; or what events became: finished, failed, any other.",
    ),
]
Reason = Annotated[str | None, option("--reason", "TEXT", "Their error contains this.")]
Since = Annotated[
    Any, option("--since", "WHEN", "They were processed at 2026-01-31T12:00 (UTC) or later; 2h: ago.", parser=moment)
]
Until = Annotated[Any, option("--until", "WHEN", "They were processed before that.", parser=moment)]


@app.command(cls=Command)
def history(
    url: Url,
    queue: Queue,
    id: Ids = None,
    consumer: Consumer = None,
    outcome: Went = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, option("--limit", "N", f"The last ones, at most so many (default: {LONG}).", min=1)] = LONG,
    json: Json = False,
) -> None:
    """Show what a queue has processed, the latest last.

    As far as it was kept: the option `history` of a source, or `commit --history`.
    """
    found = operations.history(
        url, queue, ids=id, consumer=consumer, outcome=outcome, reason=reason, since=since, until=until,
        limit=limit + 1,
    )  # fmt: skip
    heads = ("id", "processed (UTC)", "by", "outcome", "tries", "error", "payload")
    listed(found, limit, "message", heads, _past, json=json, last=True)
    if not found:
        say(f"the history of {queue} tells of none")


def _past(one: Any) -> Sequence[object]:
    return one.id, one.processed, one.consumer, one.outcome, one.tries, cut(one.error or ""), text(one)


@app.command(cls=Command)
def replay(
    url: Url,
    queue: Queue,
    name: Annotated[str, argument("NAME", "The name of this replay: one of a name is done once.")],
    to: Annotated[str | None, option("--to", "Q", "Where they go (default: the queue itself).")] = None,
    create: Annotated[bool, flag("--create", help="Make that queue, if there is none.")] = False,
    rate: Annotated[
        float | None, option("--rate", "N", "Let so many a second be ready, one after the other.")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Push nothing, and tell what would be pushed.")] = False,
    id: Ids = None,
    consumer: Consumer = None,
    outcome: Went = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, option("--limit", "N", "The last ones, at most so many.", min=1)] = None,
    json: Json = False,
) -> None:
    """Push a part of a queue's history once more.

    As new messages, all of them or none. Called again by the same name, it completes what is missing.
    """
    pushed = operations.replay(
        url, queue, name, to=to, create=create, rate=rate, dry_run=dry_run, ids=id, consumer=consumer,
        outcome=outcome, reason=reason, since=since, until=until, limit=limit,
    )  # fmt: skip
    if json:
        tell({"queue": queue, "name": name, "to": to or queue, "dry_run": dry_run, "pushed": pushed})
    else:
        show(f"{plural(pushed, 'message')} of {queue} {'would be ' if dry_run else ''}pushed to {to or queue}")
