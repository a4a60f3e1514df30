"""Printing: results to stdout, notes and errors to stderr."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from json import dumps
from typing import TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_queue.cli.lazy import payload
from spark_queue.errors import UsageError, plural

T = TypeVar("T")

#: Most characters of a payload or an error in a table, and most rows of a list unless asked otherwise.
CELL_WIDTH, LIST_ROWS = 60, 100

#: Characters that JSON allows in a string, but terminals obey or programs take for the end of a line.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029]")


def errors() -> Console:
    """Return the console of stderr."""
    return Console(stderr=True)


def show(text: str) -> None:
    """Print a result as a sentence."""
    print(printable(text))


def say(text: str) -> None:
    """Print a note or an error."""
    print(printable(text), file=sys.stderr)


def tell(value: object) -> None:
    """Print a result as JSON."""
    print(dumped(value, indent=2))


def line(value: object) -> None:
    """Print a part of a result as a line of JSON."""
    print(_ODD.sub(lambda one: f"\\u{ord(one[0]):04x}", dumped(value)))


def dumped(value: object, indent: int | None = None) -> str:
    """Return JSON text.

    Moments in ISO format (UTC), bytes as Extended JSON.
    """
    return dumps(value, default=lambda one: payload.jsonable(one), indent=indent, ensure_ascii=False)


#: Heads of columns that hold numbers.
NUMBERS = {
    "messages", "tries", "last batch", "ready", "scheduled", "reserved", "dead", "oldest ready", "put", "get",
    "reserve", "commit", "rollback", "deadletter", "events", "URIs", "pushed/s", "done/s", "change/s",
}  # fmt: skip


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: as wide as its cells, or as the terminal if that is narrower."""
    console().print(made_table(heads, rows))


def listed(
    found: Sequence[T],
    limit: int,
    of: str,
    heads: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    json: bool,
    plain: Callable[[T], object] = lambda one: one,
    last: bool = False,
) -> None:
    """Print the first `limit` of what was found, or the `last`: as a table of rows, or `plain` as JSON.

    It says so if more was found: so look for one more than `limit`. `of`: the noun in the singular.
    """
    shown = found[-limit:] if last else found[:limit]
    if json:
        tell([plain(one) for one in shown])
    elif shown:
        table(heads, map(row, shown))
    if len(found) > limit:
        say(f"only {plural(limit, of)} shown; for more, set --limit")


def console() -> Console:
    """Return the console of stdout."""
    return Console(width=None if sys.stdout.isatty() else 10_000)


def made_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table."""
    made = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(head, overflow="fold", justify="right" if head in NUMBERS else "left")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> Text:
    """Return a value as a cell."""
    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        return Text(dated(value))
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("" if value is None else printable(str(value)))


def dated(moment: datetime) -> str:
    """Return a moment in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def age(seconds: float | None) -> str:
    """Return a duration, rounded."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} s"


def rate(per_second: float | None, *, sign: bool = False) -> str:
    """Return messages per second."""
    return "" if per_second is None else f"{per_second:{'+' if sign else ''},.1f}"


def bar(number: int) -> str:
    """Return a number as a bar of logarithmic length; on a terminal only."""
    return "█" * math.ceil(2 * math.log10(number + 1)) if sys.stdout.isatty() else ""


def sparks(numbers: Sequence[int]) -> str:
    """Return numbers as a small chart."""
    low, high = min(numbers), max(numbers)
    return "".join("▁▂▃▄▅▆▇█"[0 if high == low else (one - low) * 7 // (high - low)] for one in numbers)


def printable(text: str) -> str:
    """Return a text without characters that a terminal obeys: messages come from anywhere."""
    return "".join(one if one.isprintable() else " " for one in text)


def cut(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= CELL_WIDTH else f"{text[: CELL_WIDTH - 1]}…"


def confirm(question: str) -> None:
    """Ask, and end the program if the answer is no. Raises `UsageError` if there is no terminal."""
    if not asked():
        raise UsageError(f"{question} There is no terminal to ask: confirm with --yes")
    typer.confirm(question, abort=True, err=True)


def asked() -> bool:
    """Return whether a user can answer."""
    return sys.stdin.isatty()


class Progressing:
    """Shows a long step: a bar on a terminal, nothing elsewhere. `total`: bytes that will be read."""

    def __init__(self, doing: str, total: int | None = None) -> None:
        from rich.progress import (  # imported late: a third of the start
            BarColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=errors(), transient=True, disable=not sys.stderr.isatty())
        self._done = 0
        self._task = self._bar.add_task(doing, total=total, told="")

    def read(self, size: int) -> None:
        """Show that `size` more bytes were read."""
        self._bar.advance(self._task, size)

    def count(self, ids: Sequence[str]) -> None:
        """Show that these messages are done."""
        self._done += len(ids)
        self._bar.update(self._task, told=f"{self._done:,}")

    def step(self, done: int, wanted: int) -> None:
        """Show that `done` of `wanted` messages are done."""
        self._bar.update(self._task, completed=done, total=wanted, told=f"{done:,}/{wanted:,}")

    def __enter__(self) -> Progressing:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
