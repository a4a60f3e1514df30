"""Dead letters: show them, and move them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spark_queue import admin
from spark_queue.cli.output import (
    LIST_ROWS,
    ProgressBar,
    echo_err,
    print_list,
    print_result,
    shorten,
    shorten_payload,
)
from spark_queue.cli.params import (
    Command,
    Create,
    Ids,
    JsonFlag,
    Reason,
    Url,
    app,
    argument,
    flag,
    group,
    moment,
    number,
    option,
    since,
)
from spark_queue.errors import plural
from spark_queue.options.queue_names import dead_letter_queue

deadletter = group("List and redrive dead letters.")
app.add_typer(deadletter, name="deadletter")

# Which dead letters.
FailedQueue = Annotated[str | None, argument("QUEUE", "The queue in which the messages failed.")]
DeadQueueOption = Annotated[str | None, option("--dead", "Q", "The dead-letter queue (default: <queue>.dead).")]
FailedSince = Annotated[Any, since("that failed")]
FailedUntil = Annotated[Any, moment("--until", "Only those that failed before that.")]


@deadletter.command("list", cls=Command)
def deadletter_list(
    url: Url,
    queue: FailedQueue = None,
    dead: DeadQueueOption = None,
    id: Ids = None,
    reason: Reason = None,
    since: FailedSince = None,
    until: FailedUntil = None,
    limit: Annotated[int, number("--limit", f"Maximum number: the oldest (default: {LIST_ROWS}).")] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show dead letters, oldest first."""
    filters = admin.DeadLetterFilters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit + 1)
    letters = admin.dead_letters(url, queue, **filters)
    heads = ("id", "failed (UTC)", "from", "tries", "error", "payload")
    print_list(letters, limit, "dead letter", heads, _letter_row, json=json)
    if not letters:
        _print_no_letters(url, queue, dead)


def _letter_row(one: admin.DeadLetter) -> Sequence[object]:
    return one.id, one.died, one.from_queue, one.tries, shorten(one.error or ""), shorten_payload(one.payload)


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
    create: Create = False,
    rate: Annotated[float | None, option("--rate", "N", "Maximum number of messages per second.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Show what would be moved, and move nothing.")] = False,
    dead: DeadQueueOption = None,
    id: Ids = None,
    reason: Reason = None,
    since: FailedSince = None,
    until: FailedUntil = None,
    limit: Annotated[int | None, number("--limit", "Maximum number: the oldest.")] = None,
    json: JsonFlag = False,
) -> None:
    """Move dead letters back to their queues.

    Their tries start at 0.
    """
    filters = admin.DeadLetterFilters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit)
    name = dead or dead_letter_queue(str(queue))
    with RedriveProgress("redriving") as progress:
        moved = admin.redrive(
            url, queue, to=to, create=create, rate=rate, dry_run=dry_run, progress=progress.step, **filters
        )
    skipped = progress.found - progress.moved
    done = "would be moved" if dry_run else "moved"
    lines = [f"{plural(rows, 'message')} {done} from {name} to {target}" for target, rows in moved.items()]
    print_result({"dead": name, "dry_run": dry_run, "moved": moved, "passed_over": skipped}, *lines, json=json)
    if not moved:
        _print_no_letters(url, queue, dead)
    if skipped:
        echo_err(f"{plural(skipped, 'dead letter')} skipped: reserved by a consumer, or gone")


class RedriveProgress(ProgressBar):
    """A progress bar of a redrive, and a note with its progress if it was interrupted."""

    moved = found = 0

    def step(self, done: int, wanted: int) -> None:
        """Show that `done` of `wanted` dead letters were moved."""
        self.moved, self.found = done, wanted
        super().step(done, wanted)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is not None and self.found:
            found = plural(self.found, "dead letter")
            echo_err(f"moved {self.moved:,} of {found}; to move the rest, repeat the call")
