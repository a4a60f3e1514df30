"""Dead letters: show them, and move them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.lazy import admin
from spark_queue.cli.output import (
    LIST_ROWS,
    ProgressBar,
    echo_err,
    print_json,
    print_list,
    print_text,
    shorten,
    to_json,
)
from spark_queue.cli.params import (
    Command,
    Ids,
    JsonFlag,
    Reason,
    Url,
    app,
    argument,
    flag,
    group,
    option,
    parse_moment,
)
from spark_queue.errors import plural
from spark_queue.options.queue_names import dead_letter_queue

if TYPE_CHECKING:
    from spark_queue.admin import DeadLetter


deadletter = group("List and redrive dead letters.")
app.add_typer(deadletter, name="deadletter")

# Which dead letters.
FailedQueue = Annotated[str | None, argument("QUEUE", "The queue in which the messages failed.")]
DeadQueueOption = Annotated[str | None, option("--dead", "Q", "The dead-letter queue (default: <queue>.dead).")]
FailedSince = Annotated[
    Any,
    option(
        "--since",
        "WHEN",
        "Only those that failed since 2026-01-31T12:00 (UTC), or in the last 2h.",
        parser=parse_moment,
    ),
]
FailedUntil = Annotated[Any, option("--until", "WHEN", "Only those that failed before that.", parser=parse_moment)]


@deadletter.command("list", cls=Command)
def deadletter_list(
    url: Url,
    queue: FailedQueue = None,
    dead: DeadQueueOption = None,
    id: Ids = None,
    reason: Reason = None,
    since: FailedSince = None,
    until: FailedUntil = None,
    limit: Annotated[
        int, option("--limit", "N", f"Maximum number: the oldest (default: {LIST_ROWS}).", min=1)
    ] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show dead letters, oldest first."""
    filters = admin.DeadLetterFilters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit + 1)
    letters = admin.dead_letters(url, queue, **filters)
    heads = ("id", "failed (UTC)", "from", "tries", "error", "payload")
    print_list(letters, limit, "dead letter", heads, _letter_row, json=json)
    if not letters:
        _print_no_letters(url, queue, dead)


def _letter_row(one: DeadLetter) -> Sequence[object]:
    payload = one.payload if isinstance(one.payload, str) else to_json(one.payload)
    return one.id, one.died, one.from_queue, one.tries, shorten(one.error or ""), shorten(payload)


def _print_no_letters(url: str, queue: str | None, dead: str | None) -> None:
    name = dead or dead_letter_queue(str(queue))
    echo_err(f"no dead letters of this kind in {name}{admin.suggest(url, dead or queue or '')}")


@deadletter.command("redrive", cls=Command)
def deadletter_redrive(
    url: Url,
    queue: FailedQueue = None,
    to: Annotated[
        str | None, option("--to", "Q", "The queue to move them to (default: the queue that each came from).")
    ] = None,
    create: Annotated[bool, flag("--create", help="Create that queue if it does not exist.")] = False,
    rate: Annotated[float | None, option("--rate", "N", "Maximum number of messages per second.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Show what would be moved, and move nothing.")] = False,
    dead: DeadQueueOption = None,
    id: Ids = None,
    reason: Reason = None,
    since: FailedSince = None,
    until: FailedUntil = None,
    limit: Annotated[int | None, option("--limit", "N", "Maximum number: the oldest.", min=1)] = None,
    json: JsonFlag = False,
) -> None:
    """Move dead letters back to their queues.

    Their tries start at 0.
    """
    filters = admin.DeadLetterFilters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit)
    name = dead or dead_letter_queue(str(queue))
    with RedriveProgress() as progress:
        moved = admin.redrive(
            url, queue, to=to, create=create, rate=rate, dry_run=dry_run, progress=progress.step, **filters
        )
    if json:
        print_json({"dead": name, "dry_run": dry_run, "moved": moved, "passed_over": progress.found - progress.moved})
    else:
        for target, number in moved.items():
            print_text(f"{plural(number, 'message')} {'would be ' if dry_run else ''}moved from {name} to {target}")
    if not moved:
        _print_no_letters(url, queue, dead)
    if progress.found > progress.moved:
        echo_err(f"{plural(progress.found - progress.moved, 'dead letter')} skipped: reserved by a consumer, or gone")


class RedriveProgress:
    """A progress bar of a redrive, and a note with its progress if it was interrupted."""

    def __init__(self) -> None:
        self.moved = self.found = 0
        self._bar = ProgressBar("redriving")

    def step(self, moved: int, found: int) -> None:
        """Show that `moved` of `found` dead letters were moved."""
        self.moved, self.found = moved, found
        self._bar.step(moved, found)

    def __enter__(self) -> RedriveProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.__exit__()
        if kind is not None and self.found:
            echo_err(
                f"moved {self.moved:,} of {plural(self.found, 'dead letter')}; to move the rest, repeat the call"
            )
