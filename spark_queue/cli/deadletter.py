"""Dead letters: shown, and sent back where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from spark_queue.cli.late import operations
from spark_queue.cli.parse import Command, Ids, Json, Url, app, argument, flag, group, moment, option
from spark_queue.cli.show import LONG, Progressing, cut, dumped, listed, plural, say, show, tell

if TYPE_CHECKING:
    from spark_queue.operations import DeadLetter


deadletter = group("Dead letters: messages that failed for good.")
app.add_typer(deadletter, name="deadletter")

# Which dead letters are meant.
Of = Annotated[str | None, argument("QUEUE", "The queue in which they failed.")]
Dead = Annotated[str | None, option("--dead", "Q", "The queue they lie in (default: <queue>.dead).")]
Reason = Annotated[str | None, option("--reason", "TEXT", "Their error contains this.")]
Since = Annotated[
    Any, option("--since", "WHEN", "They died at 2026-01-31T12:00 (UTC) or later; 2h: ago.", parser=moment)
]
Until = Annotated[Any, option("--until", "WHEN", "They died before that.", parser=moment)]


@deadletter.command("list", cls=Command)
def deadletter_list(
    url: Url,
    queue: Of = None,
    dead: Dead = None,
    id: Ids = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, option("--limit", "N", f"The oldest ones, at most so many (default: {LONG}).", min=1)
    ] = LONG,
    json: Json = False,
) -> None:
    """Show dead letters, the oldest first."""
    filters = operations.Filters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit + 1)
    letters = operations.dead_letters(url, queue, **filters)
    heads = ("id", "died (UTC)", "from", "tries", "error", "payload")
    listed(letters, limit, "dead letter", heads, _letter, json=json)
    if not letters:
        _no_letters(url, queue, dead)


def _letter(one: DeadLetter) -> Sequence[object]:
    payload = one.payload if isinstance(one.payload, str) else dumped(one.payload)
    return one.id, one.died, one.from_queue, one.tries, cut(one.error or ""), cut(payload)


def _no_letters(url: str, queue: str | None, dead: str | None) -> None:
    name = dead or f"{queue}.dead"
    say(f"no such dead letters in {name}{operations.suggest(url, dead or queue or '')}")


@deadletter.command("redrive", cls=Command)
def deadletter_redrive(
    url: Url,
    queue: Of = None,
    to: Annotated[str | None, option("--to", "Q", "Where they go (default: where each came from).")] = None,
    create: Annotated[bool, flag("--create", help="Make that queue, if there is none.")] = False,
    rate: Annotated[float | None, option("--rate", "N", "Move at most so many a second.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Move nothing, and tell what would be moved.")] = False,
    dead: Dead = None,
    id: Ids = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, option("--limit", "N", "The oldest ones, at most so many.", min=1)] = None,
    json: Json = False,
) -> None:
    """Move dead letters back into the queues they came from, where their tries start at 0."""
    filters = operations.Filters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit)
    name = dead or f"{queue}.dead"
    with Redriving() as seen:
        moved = operations.redrive(
            url, queue, to=to, create=create, rate=rate, dry_run=dry_run, progress=seen.step, **filters
        )
    if json:
        tell({"dead": name, "dry_run": dry_run, "moved": moved, "passed_over": seen.found - seen.moved})
    else:
        for target, number in moved.items():
            show(f"{plural(number, 'message')} {'would be ' if dry_run else ''}moved from {name} to {target}")
    if not moved:
        _no_letters(url, queue, dead)
    if seen.found > seen.moved:
        say(f"{plural(seen.found - seen.moved, 'dead letter')} passed over: somebody holds them, or they are gone")


class Redriving:
    """What is seen of a redrive: a bar on a terminal, and where it ended, if it was cut short."""

    def __init__(self) -> None:
        self.moved = self.found = 0
        self._bar = Progressing("redriving")

    def step(self, moved: int, found: int) -> None:
        """So many were moved, of those found."""
        self.moved, self.found = moved, found
        self._bar.step(moved, found)

    def __enter__(self) -> Redriving:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.__exit__()
        if kind is not None and self.found:
            say(f"{self.moved:,} of {plural(self.found, 'dead letter')} were moved; the same call moves the rest")
