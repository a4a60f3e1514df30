"""The command line: `spark-queue --help`. It parses, calls `spark_queue.operations`, prints, and decides nothing.

Results go to stdout, as tables and sentences or, with `--json`, as one JSON document; what else is to be said goes
to stderr. Exit code 0: done. 1: the database failed, or somebody else has what was asked for, or a question was
answered with no. 2: a mistake in the call. 130: stopped by Ctrl-C.

Another command is a function here, with `@app.command(cls=Command)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

from spark_queue import operations
from spark_queue.buckets import Buckets
from spark_queue.errors import QueueError, UsageError
from spark_queue.message import as_json
from spark_queue.operations import DeadLetter, Filters, Held, Moment, Sink
from spark_queue.options import duration

try:
    import typer
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
    from rich.text import Text
    from typer.core import TyperCommand, TyperGroup
except ModuleNotFoundError as missing:
    print(f"spark-queue: {missing}; install it with: pip install 'spark-queue[cli]'", file=sys.stderr)
    sys.exit(2)

#: Where the URL comes from that a command is not given: passwords on a command line can be seen by other users.
URL_VARIABLE = "SPARK_QUEUE_URL"

#: Most characters of a payload or an error in a table, and most dead letters in a list unless asked otherwise.
WIDE, LONG = 60, 100


# --- how commands are made ------------------------------------------------------------------------------------------


class Command(TyperCommand):
    """A command whose first argument is the URL of a store, which may be left out where the environment tells it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the URL where the first argument is none."""
        url = os.environ.get(URL_VARIABLE)
        if url and "://" not in str(self.make_parser(ctx).parse_args(list(args))[0].get("url")):
            args = [url, *args]
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """Commands whose errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except QueueError as error:
            say(f"spark-queue: {error}")
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error


def group(help: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        cls=Commands, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


app = group("Look after queues of spark_queue: reservations, dead letters, and sinks that write exactly once.")
deadletter = group("Dead letters: messages that failed for good.")
app.add_typer(deadletter, name="deadletter")
ledger = group("Sinks that write exactly once: what they have published.")
app.add_typer(ledger, name="ledger")


def main() -> None:
    """Run the command that `sys.argv` asks for, and end the process with its exit code."""
    app(prog_name="spark-queue")


# --- what is parsed -------------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """A duration such as `10s`, in seconds."""
    try:
        return duration(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} must be {error}") from None


def moment(text: str) -> Moment:
    """A moment in ISO format, in UTC unless it says otherwise; or a duration: so long ago."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return timedelta(milliseconds=duration(text))
        except (ValueError, OverflowError) as error:
            raise typer.BadParameter(
                f"{text!r} must be a moment such as 2026-01-31T12:00, or so long ago: {error}"
            ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def argument(metavar: str, help: str) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def option(name: str, metavar: str, help: str, **how: Any) -> Any:
    """An option that takes a value."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False, **how)


def flag(*names: str, help: str) -> Any:
    """An option that takes none."""
    return typer.Option(*names, help=help)


Url = Annotated[
    str, argument("URL", f"sqlite:///queues.db, mongodb://host/db or redis://host/0; if left out, ${URL_VARIABLE}.")
]
Json = Annotated[bool, flag("--json", help="Print one JSON document.")]
SinkName = Annotated[str, argument("SINK", "The id of a streaming query, or a txnAppId.")]


class Form(StrEnum):
    """How a graph is drawn."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"


# Which dead letters are meant.
Of = Annotated[str | None, argument("QUEUE", "The queue in which they failed.")]
Dead = Annotated[str | None, option("--dead", "Q", "The queue they lie in (default: <queue>.dead).")]
Ids = Annotated[list[str] | None, option("--id", "ID", "This very one; repeatable.")]
Reason = Annotated[str | None, option("--reason", "TEXT", "Their error contains this.")]
Since = Annotated[
    Any, option("--since", "WHEN", "They died at 2026-01-31T12:00 (UTC) or later; 2h: ago.", parser=moment)
]
Until = Annotated[Any, option("--until", "WHEN", "They died before that.", parser=moment)]


# --- reservations ---------------------------------------------------------------------------------------------------


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
        table(("queue", "tag", "messages", "lease ends (UTC)", "run by"), map(_reserved, held))
    if not held:
        say(f"nothing is reserved{f' in {queue}{operations.suggest(url, queue)}' if queue else ''}")


def _reserved(one: Held) -> Sequence[object]:
    return one.queue, one.tag, one.rows, one.until or "never", one.owner


@app.command(cls=Command)
def release(
    url: Url,
    queue: Annotated[str, argument("QUEUE", "The queue.")],
    tag: Annotated[
        str, argument("TAG", "A consumer (etl), a run of it (etl/3fa9c1), a batch (…/7), a partition (…/7/0).")
    ],
    force: Annotated[bool, flag("--force", help="Take it away from a living query, too, which then fails.")] = False,
    failed: Annotated[bool, flag("--failed", help="Count one more failed try.")] = False,
    delay: Annotated[Any, option("--delay", "10s", "Nobody can reserve them before that.", parser=seconds)] = "0s",
    yes: Annotated[bool, flag("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Give back what a tag and those below it hold."""
    if not yes:
        held = operations.reservations(url, queue, tag)
        refused = not force and any(one.owner for one in held)
        if held and not refused:
            confirm(f"Give back {plural(sum(one.rows for one in held), 'message')} of {queue} held under {tag}?")
    released = operations.release(url, queue, tag, force=force, failed=failed, delay=delay)
    if json:
        tell({"queue": queue, "tag": tag, "released": released})
    else:
        show(f"{plural(released, 'message')} of {queue} given back")
    if not released:
        say(f"nothing is held under {tag}{operations.suggest(url, queue, tag)}")


# --- dead letters ---------------------------------------------------------------------------------------------------


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
    filters = Filters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit + 1)
    letters = operations.dead_letters(url, queue, **filters)
    more, letters = len(letters) > limit, letters[:limit]
    if json:
        tell(letters)
    elif letters:
        table(("id", "died (UTC)", "from", "tries", "error", "payload"), map(_letter, letters))
    if more:
        say(f"there are more than these {plural(limit, 'dead letter')}: show more with --limit")
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
    filters = Filters(dead=dead, ids=id, reason=reason, since=since, until=until, limit=limit)
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
        self._bar: Progress | None = None

    def step(self, moved: int, found: int) -> None:
        """So many were moved, of those found."""
        self.moved, self.found = moved, found
        if self._bar is None:
            columns = TextColumn("redriving"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=errors(), transient=True, disable=not sys.stderr.isatty())
            self._bar.add_task("", total=found)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=moved, total=found)

    def __enter__(self) -> Redriving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and self.found:
            say(f"{self.moved:,} of {plural(self.found, 'dead letter')} were moved; the same call moves the rest")


# --- sinks ----------------------------------------------------------------------------------------------------------


@ledger.command("list", cls=Command)
def ledger_list(url: Url, json: Json = False) -> None:
    """Show sinks, the last batch each has published, and what is staged."""
    sinks = operations.ledgers(url)
    if json:
        tell(sinks)
    elif sinks:
        table(("sink", "last batch", "staged rows", "state"), map(_sink, sinks))
    else:
        say("no sink has written exactly once")


def _sink(one: Sink) -> Sequence[object]:
    staged = ", ".join(f"batch {batch}: {rows:,}" for batch, rows in sorted(one.staged.items()))
    if one.unpublished:
        state = f"half published: {one.unpublished:,} to go"
    else:
        state = "nothing published" if one.batch is None else "published"
    return one.sink, one.batch, staged, state


@ledger.command("recover", cls=Command)
def ledger_recover(url: Url, sink: SinkName, json: Json = False) -> None:
    """Finish the batch that the ledger names, and drop what was merely staged. Stop the query first."""
    done = operations.recover(url, sink)
    if json:
        tell({"sink": sink, **asdict(done)})
    else:
        show(f"{plural(done.published, 'message')} published, {plural(done.dropped, 'staged row')} dropped")


@ledger.command("set", cls=Command)
def ledger_set(
    url: Url,
    sink: SinkName,
    batch: Annotated[int, argument("BATCH", "The last batch that it has written.")],
    json: Json = False,
) -> None:
    """Say by word up to which batch a sink has written."""
    before = operations.set_ledger(url, sink, batch)
    if json:
        tell({"sink": sink, "batch": batch, "before": before})
    else:
        show(f"sink {sink} is at batch {batch}; before: {'no ledger' if before is None else f'batch {before}'}")


# --- graphs ---------------------------------------------------------------------------------------------------------


# --- how messages are kept --------------------------------------------------------------------------------------


class How(StrEnum):
    """The layouts of a queue."""

    single = "single"
    bucket = "bucket"


@app.command(cls=Command)
def layout(
    url: Url,
    queue: Annotated[str, argument("QUEUE", "The queue.")],
    to: Annotated[How | None, argument("LAYOUT", "Set it: a record for each message, or buckets of many.")] = None,
    bucket_size: Annotated[
        int, option("--bucket-size", "N", f"Most messages in a bucket (default: {Buckets().size}).", min=1)
    ] = Buckets().size,
    compression: Annotated[
        str, option("--compression", "lz4|zstd", f"How buckets are compressed (default: {Buckets().compression}).")
    ] = Buckets().compression,
    json: Json = False,
) -> None:
    """Show how messages that are pushed to a queue are kept, or set it."""
    if to is not None:
        operations.set_layout(url, queue, Buckets(bucket_size, compression) if to is How.bucket else None)
        found = Buckets(bucket_size, compression) if to is How.bucket else None
    else:
        found = operations.layout(url, queue)
    if json:
        tell({"queue": queue, "layout": "bucket" if found else "single"} | (asdict(found) if found else {}))
    elif found:
        show(f"{queue}: bucket, of up to {plural(found.size, 'message')}, compressed by {found.compression}")
    else:
        show(f"{queue}: single, a record for each message")


@app.command(cls=Command)
def compact(url: Url, queue: Annotated[str, argument("QUEUE", "The queue.")], json: Json = False) -> None:
    """Put ready messages that lie alone, or in small buckets, together in large ones; nobody needs to be stopped."""
    fewer = operations.compact(url, queue)
    if json:
        tell({"queue": queue, "fewer": fewer})
    else:
        show(f"{queue}: {plural(fewer, 'record')} fewer")


@app.command("graph")
def graph_of(
    conf: Annotated[Path, argument("CONF", "The file that declares the graph.")],
    form: Annotated[
        Form, option("--format", "FORM", "tree, mermaid, dot or svg (which needs Graphviz).")
    ] = Form.tree,
    output: Annotated[Path | None, option("--output", "FILE", "Write it here (default: stdout).")] = None,
    sizes: Annotated[bool, typer.Option(help="Whether to look how many messages the queues hold.")] = True,
    json: Json = False,
) -> None:
    """Draw a graph of exchanges."""
    try:
        from spark_queue import graph_picture
        from spark_queue.graph_file import graph_in
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing}; install it with: pip install 'spark-queue[graph]'") from None
    try:
        graph = graph_in(conf)
    except OSError as error:
        raise UsageError(f"{conf}: {error.strerror}") from None
    known, unknown = operations.graph_sizes(graph) if sizes else (None, [])
    for one in unknown:
        say(f"spark-queue: {one}")
    for cycle in graph.cycles():
        say(f"a cycle, which messages leave after {graph.max_hops} hops: {' → '.join([*cycle, cycle[0]])}")
    if json:
        tell(graph_picture.facts(graph, known))
        return
    if form is Form.svg:
        drawn = graph_picture.svg(graph, known)
    elif form is Form.dot:
        drawn = graph_picture.dot(graph, known).source
    elif form is Form.mermaid:
        drawn = graph_picture.mermaid(graph, known)
    else:
        drawn = "".join(f"{'  ' * depth}{printable(text)}\n" for depth, text in graph_picture.tree(graph, known))
    if output is None:
        sys.stdout.write(drawn)
    else:
        output.write_text(drawn, encoding="utf-8")


# --- what is printed ------------------------------------------------------------------------------------------------


def errors() -> Console:
    """The console of stderr."""
    return Console(stderr=True)


def show(text: str) -> None:
    """A sentence that is the result."""
    print(printable(text))


def say(text: str) -> None:
    """A sentence beside the result."""
    print(printable(text), file=sys.stderr)


def tell(value: object) -> None:
    """The result, as JSON."""
    print(dumped(value, indent=2))


def dumped(value: object, indent: int | None = None) -> str:
    """JSON text.

    Moments in ISO format (UTC), bytes as Extended JSON.
    """
    return dumps(value, default=_plain, indent=indent, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return loads(as_json(value, "binary"))
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: as wide as it must be, unless a terminal is narrower."""
    made = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(
            head, overflow="fold", justify="right" if head in ("messages", "tries", "last batch") else "left"
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    Console(width=None if sys.stdout.isatty() else 10_000).print(made)


def _cell(value: object) -> Text:
    """A value as a cell."""
    if isinstance(value, datetime):
        return Text(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("" if value is None else printable(str(value)))


def printable(text: str) -> str:
    """A text without anything that a terminal would take for a command: messages come from anywhere."""
    return "".join(one if one.isprintable() else " " for one in text)


def cut(text: str) -> str:
    """The beginning of a text that is long."""
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"


def plural(number: int, one: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def confirm(question: str) -> None:
    """Ask, and end the program where the answer is no. Raises `UsageError` where nobody can be asked."""
    if not asked():
        raise UsageError(f"{question} Nobody is here to answer: say --yes")
    typer.confirm(question, abort=True, err=True)


def asked() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty()


if __name__ == "__main__":
    main()
