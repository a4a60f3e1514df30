"""How commands are made, and the arguments that more than one of them takes.

Another command is a function with `@app.command(cls=Command)`, in a module that `cli/__init__.py` imports, and a name
in `SECTIONS`.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer
from typer.core import TyperCommand, TyperGroup

from spark_queue.address import Address
from spark_queue.cli.late import by_hand, options
from spark_queue.cli.show import say
from spark_queue.errors import QueueError, UsageError

#: Where the URL comes from that a command is not given: passwords on a command line can be seen by other users.
URL_VARIABLE = "SPARK_QUEUE_URL"

#: The commands as the help has them.
SECTIONS = {
    "Messages": ("push", "pop", "reserve", "commit", "rollback", "peek", "move", "history", "replay"),
    "Queues": ("size", "stats", "watch", "pause", "resume", "layout", "compact", "log"),
    "Repair": ("doctor", "reservations", "release", "deadletter", "ledger", "graph"),
    "By rfq's words": ("info", "list-topics", "list-queue", "purge-queue", "publish", "consume", "harvest"),
    "Itself": ("version", "completions"),
}

CODES = (
    "Exit code 0: done. 1: the database failed, a message cannot be one, somebody else has what was asked for, or a "
    "question was answered with no. 2: a mistake in the call. 130: stopped by Ctrl-C."
)


# --- how commands are made ------------------------------------------------------------------------------------------


class Command(TyperCommand):
    """A command whose first argument is the URL of a store, which may be left out where the environment tells it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the URL where the first argument is none."""
        if ctx.resilient_parsing and args and args[-1].startswith("-"):  # a shell asks for the value of this option
            args = args[:-1]
        url = usual_url(ctx.find_root().params.get("layout"))
        if url and "://" not in str(self.make_parser(ctx).parse_args(list(args))[0].get("url")):
            args = [url, *args]
        return super().parse_args(ctx, args)


def usual_url(layout: str | None) -> str | None:
    """The URL that the environment tells: for the layout `rfq`, by the variables that rfq itself reads."""
    if layout == "rfq":
        return f"redis://{os.environ.get('RFQ_REDIS_HOST', 'localhost')}:{os.environ.get('RFQ_REDIS_PORT', '6379')}/0"
    return os.environ.get(URL_VARIABLE)


def laid_out(ctx: typer.Context, url: str | None) -> str | None:
    """The URL with the layout that `--layout` tells."""
    layout = ctx.find_root().params.get("layout")
    if not url or not layout:
        return url
    return Address.of(url).in_layout(layout)


class Commands(TyperGroup):
    """Commands whose errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except QueueError as error:
            say(f"spark-queue: {error}")
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error


class Sections(Commands):
    """All commands, which the help shows by what they are for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return [name for names in SECTIONS.values() for name in names if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write them, section by section."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(formatter.width - width - 6))
                        for name in names
                        if name in self.commands
                    ]
                )


def group(help: str, cls: type[Commands] = Commands) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        cls=cls,
        help=help,
        epilog=CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=cls is Sections,
    )


app = group("Look into queues of spark_queue, take from them and put into them, and repair what needs it.", Sections)


@app.callback()
def common(
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="L",
            show_default=False,
            help="How messages lie in the database, as ?layout= in the URL. With rfq, RFQ_REDIS_HOST and "
            "RFQ_REDIS_PORT tell where it is, if no URL does.",
        ),
    ] = None,
) -> None:
    """Take what holds for all commands: `--layout`, which `Command` looks at."""


# --- what is parsed -------------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """A duration such as `10s`, in seconds."""
    try:
        return options.duration(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} must be {error}") from None


def lasting(text: str) -> float:
    """A duration in seconds, infinity for `never`."""
    return float("inf") if text == "never" else seconds(text)


def moment(text: str) -> datetime | timedelta:
    """A moment in ISO format, in UTC unless it says otherwise; or a duration: so long ago."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return timedelta(milliseconds=options.duration(text))
        except (ValueError, OverflowError) as error:
            raise typer.BadParameter(
                f"{text!r} must be a moment such as 2026-01-31T12:00, or so long ago: {error}"
            ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def argument(metavar: str, help: str, **how: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **how)


def option(name: str, metavar: str, help: str, *names: str, **how: Any) -> Any:
    """An option that takes a value."""
    return typer.Option(name, *names, metavar=metavar, help=help, show_default=False, **how)


def flag(*names: str, help: str) -> Any:
    """An option that takes none."""
    return typer.Option(*names, help=help)


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues of the URL that begin so, for a shell to complete: none where that takes longer than a second."""
    found: list[str] = []
    queues = by_hand.queues  # to import it is not what is waited for

    def look() -> None:
        # A shell shows what is printed: who wants to know why there are no names asks `list-topics`.
        with suppress(Exception):
            found.extend(queues(str(ctx.params["url"])))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(1.0)
    return [name for name in found if name.startswith(incomplete)]


_URL = f"sqlite:///queues.db, mongodb://host/db or redis://host/0; if left out, ${URL_VARIABLE}."

Url = Annotated[str, argument("URL", _URL, callback=laid_out)]
MaybeUrl = Annotated[str | None, argument("URL", _URL, callback=laid_out)]
Queue = Annotated[str, argument("QUEUE", "The queue.", autocompletion=queue_names)]
Queues = Annotated[list[str] | None, argument("QUEUE", "The queues (default: all).", autocompletion=queue_names)]
Json = Annotated[bool, flag("--json", help="Print one JSON document.")]
JsonLines = Annotated[bool, flag("--json", help="Print JSON, one document a line.")]
Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask.")]
Ids = Annotated[list[str] | None, option("--id", "ID", "This very one; repeatable.")]

# A queue, by our way or by rfq's.
MaybeQueue = Annotated[str | None, argument("QUEUE", "The queue.", autocompletion=queue_names)]
Topic = Annotated[
    str | None, option("--topic", "QUEUE", "The queue, as rfq has it.", "-t", autocompletion=queue_names)
]


def one_queue(queue: str | None, topic: str | None) -> str:
    """The queue that is told one way or the other. Raises `UsageError` where it is told twice, or not at all."""
    if (queue is None) == (topic is None):
        raise UsageError("name the queue, as an argument or with --topic (-t)" + (", not both" if queue else ""))
    return str(topic if queue is None else queue)


def is_rfq(url: str) -> bool:
    """Whether a URL names the layout of rfq."""
    return "rfq" in parse_qs(urlsplit(url).query).get("layout", ())
