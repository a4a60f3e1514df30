"""Print results to stdout, notes and errors to stderr."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from json import dumps
from typing import NoReturn, Self, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_queue.errors import UsageError, plural

T = TypeVar("T")

#: Maximum width of a payload or an error in a table, and default limit of a list.
CELL_WIDTH, LIST_ROWS = 60, 100

#: Characters that JSON allows, but that control a terminal or end a line for some programs.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029]")


def print_text(text: str) -> None:
    """Print a result as a sentence."""
    print(printable(text))


def echo_err(text: str) -> None:
    """Print a note or an error."""
    print(printable(text), file=sys.stderr)


def print_json(value: object) -> None:
    """Print a result as JSON."""
    print(to_json(value, indent=2))


def print_json_line(value: object) -> None:
    """Print one item of a result as a line of JSON."""
    print(_UNSAFE.sub(lambda one: f"\\u{ord(one[0]):04x}", to_json(value)))


def print_result(value: object, *sentences: str, json: bool) -> None:
    """Print a result as sentences, or as JSON."""
    if json:
        print_json(value)
    else:
        for one in sentences:
            print_text(one)


def exit_with_note(text: str) -> NoReturn:
    """Print a note, and end with exit code 1: the answer is no."""
    echo_err(text)
    raise typer.Exit(1)


def to_json(value: object, indent: int | None = None) -> str:
    """Convert a value to JSON: moments in ISO format (UTC), bytes as Extended JSON."""
    from spark_queue.messages.payload import to_jsonable  # so that --help starts fast

    return dumps(value, default=to_jsonable, indent=indent, ensure_ascii=False)


#: Heads of columns that hold numbers.
NUMERIC_HEADS = {
    "messages", "tries", "last batch", "ready", "scheduled", "reserved", "dead", "oldest ready", "put", "get",
    "reserve", "commit", "rollback", "deadletter", "events", "URIs", "pushed/s", "done/s", "change/s",
}  # fmt: skip


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, as wide as its cells, but not wider than the terminal."""
    console().print(build_table(heads, rows))


def print_items(
    found: Collection[object], heads: Sequence[str], rows: Iterable[Sequence[object]], *, json: bool
) -> None:
    """Print items as a table of `rows`, or as JSON. Without items there is no table."""
    if json:
        print_json(found)
    elif found:
        print_table(heads, rows)


def print_list(
    found: Sequence[T],
    limit: int,
    noun: str,
    heads: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    json: bool,
    to_value: Callable[[T], object] = lambda one: one,
    last: bool = False,
) -> None:
    """Print the first `limit` items, or the last: as a table of `row`s, or as JSON of `to_value`.

    If there are more items, it prints a note; so pass one more than `limit`. `noun`: the kind of
    the items, in the singular.
    """
    shown = found[-limit:] if last else found[:limit]
    print_items([to_value(one) for one in shown], heads, map(row, shown), json=json)
    if len(found) > limit:
        echo_err(f"only {plural(limit, noun)} shown; for more, set --limit")


def console() -> Console:
    """Return the console of stdout."""
    return Console(width=None if sys.stdout.isatty() else 10_000)


def build_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Build a table. Columns of numbers are aligned right."""
    result = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    for head in heads:
        result.add_column(head, overflow="fold", justify="right" if head in NUMERIC_HEADS else "left")
    for row in rows:
        result.add_row(*map(_to_cell, row))
    return result


def _to_cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        return Text(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("" if value is None else printable(str(value)))


def format_duration(seconds: float | None) -> str:
    """Format a duration, rounded."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} s"


def format_rate(per_second: float | None, *, sign: bool = False) -> str:
    """Format messages per second, with one decimal."""
    return "" if per_second is None else f"{per_second:{'+' if sign else ''},.1f}"


def log_bar(number: int) -> str:
    """Return a bar whose length is the logarithm of a number; empty if stdout is not a terminal."""
    return "█" * math.ceil(2 * math.log10(number + 1)) if sys.stdout.isatty() else ""


def sparkline(numbers: Sequence[int]) -> str:
    """Return numbers as a small chart."""
    low, high = min(numbers), max(numbers)
    return "".join("▁▂▃▄▅▆▇█"[0 if high == low else (one - low) * 7 // (high - low)] for one in numbers)


def printable(text: str) -> str:
    """Replace the characters that control a terminal by blanks: messages may contain any text."""
    return "".join(one if one.isprintable() else " " for one in text)


def shorten(text: str) -> str:
    """Shorten a text to CELL_WIDTH characters."""
    return text if len(text) <= CELL_WIDTH else f"{text[: CELL_WIDTH - 1]}…"


def shorten_payload(payload: object) -> str:
    """Return the beginning of a payload: of a text, or of its JSON."""
    return shorten(payload if isinstance(payload, str) else to_json(payload))


def confirm(question: str) -> None:
    """Ask a question, and exit if the answer is no. Raises `UsageError` without a terminal."""
    if not can_ask():
        raise UsageError(f"{question} There is no terminal to ask: confirm with --yes")
    typer.confirm(question, abort=True, err=True)


def can_ask() -> bool:
    """Return whether a user can answer: stdin is a terminal."""
    return sys.stdin.isatty()


class ProgressBar:
    """A progress bar, on a terminal only. `total`: the number of bytes to read, if known."""

    def __init__(self, description: str, total: int | None = None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # slow to import

        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._done = 0
        self._task = self._bar.add_task(description, total=total, count="")

    def read(self, size: int) -> None:
        """Show that `size` more bytes were read."""
        self._bar.advance(self._task, size)

    def count(self, ids: Sequence[str]) -> None:
        """Show that the messages with these ids are done."""
        self._done += len(ids)
        self._bar.update(self._task, count=f"{self._done:,}")

    def step(self, done: int, wanted: int) -> None:
        """Show that `done` of `wanted` messages are done."""
        self._bar.update(self._task, completed=done, total=wanted, count=f"{done:,}/{wanted:,}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
