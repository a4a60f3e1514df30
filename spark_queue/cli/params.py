"""Base classes of commands, and the parameters that several commands share.

To add a command, write a function with `@app.command(cls=Command)` in a module that
`cli/__init__.py` imports, and add its name to `SECTIONS`. A command without a URL has
`cls=BaseCommand`.
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

import spark_queue
from spark_queue import admin
from spark_queue.cli import mistakes
from spark_queue.cli.mistakes import URL_VARIABLE as URL_VARIABLE
from spark_queue.cli.mistakes import ClickUsageError
from spark_queue.cli.output import echo_err, print_text
from spark_queue.errors import QueueError, UsageError
from spark_queue.messages.value_errors import check_id_and_headers
from spark_queue.options.url import StoreUrl

#: The commands by section, in the order of the help.
SECTIONS = {
    "Messages": ("push", "pop", "reserve", "commit", "rollback", "peek", "move", "history", "replay"),
    "Queues": ("size", "stats", "watch", "pause", "resume", "layout", "compact", "log", "adopt"),
    "Operations": ("doctor", "reservations", "release", "recover", "deadletter", "ledger", "graph"),
    "Events": ("event",),
    "Other": ("serve", "version", "completions"),
}

#: The commands of rfq. The help shows them with `--layout rfq`.
RFQ_COMMANDS = ("info", "list-topics", "list-queue", "purge-queue", "publish", "consume", "harvest")

EXIT_CODES = (
    "Exit code 0: done. 1: the database failed, a message is invalid, another process holds the messages or sink, "
    "or the answer is no (no message is ready). 2: the call is wrong; nothing was changed. 130: stopped by Ctrl-C."
)

#: Settings of all commands; those of groups inherit them.
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


# --- base classes of commands ---------------------------------------------------------------------


class BaseCommand(TyperCommand):
    """A command that explains a wrong call."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `ClickUsageError` with the right call."""
        given: list[str] = []
        url: str | None = None
        try:
            if not ctx.resilient_parsing:
                given = self._positional(ctx, args)
                url = self._default_url(ctx, given, args)
            return super().parse_args(ctx, [*args] if url is None else [url, *args])  # which empties its list
        except ClickUsageError as error:
            raise mistakes.explain(error, self, ctx, args, given, url) from None

    def _positional(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments of a call, without its options."""
        values, extra, _ = self.make_parser(ctx).parse_args(list(args))
        found: list[str] = []
        for one in self.params:
            value = values.get(one.name) if one.param_type_name == "argument" else None
            found += value if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []
        return found + list(extra)

    def _default_url(self, ctx: Any, given: list[str], args: list[str]) -> str | None:
        """Return the URL to put before the arguments, if the call needs one."""
        return None


class Command(BaseCommand):
    """A command whose first argument is the URL of a store, by default from the environment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        url = next(one for one in self.params if one.name == "url")
        self.needs_url, url.required = url.required, False  # may be left out: `_default_url` checks it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for completion, add the URL of the environment if there is none."""
        if ctx.resilient_parsing:
            if args and args[-1].startswith("-"):  # a shell completes the value of this option
                args = args[:-1]
            url = environment_url(ctx)
            if url and "://" not in str(self.make_parser(ctx).parse_args(list(args))[0].get("url")):
                args = [url, *args]
        return super().parse_args(ctx, args)

    def _default_url(self, ctx: Any, given: list[str], args: list[str]) -> str | None:
        """Return the URL of the environment, if the call has none.

        Raises `ClickUsageError` if the environment has none either, or if the URL of the call is
        wrong.
        """
        if {"-h", "--help"} & set(args):
            return None
        default, first = environment_url(ctx), given[0] if given else None
        if first is not None and mistakes.is_url(first):
            if wrong := mistakes.explain_wrong_url(first):
                raise ClickUsageError(wrong, ctx)
            return None
        # Only for `event create` the second argument may be a URL: the source of the event.
        if len(given) > 1 and mistakes.is_store(given[1]) and not (default and self.name == "create"):
            raise ClickUsageError(mistakes.explain_swapped_url(self, ctx, given), ctx)
        if default is None and (self.needs_url or first is not None):
            raise ClickUsageError(
                (first and mistakes.explain_wrong_url(first)) or mistakes.explain_missing_url(self, ctx, given), ctx
            )
        return default


def environment_url(ctx: Any) -> str | None:
    """Return the URL of the environment; for the layout `rfq`, from the variables of rfq."""
    if ctx.find_root().params.get("layout") == "rfq":
        return f"redis://{os.environ.get('RFQ_REDIS_HOST', 'localhost')}:{os.environ.get('RFQ_REDIS_PORT', '6379')}/0"
    return os.environ.get(URL_VARIABLE)


def with_layout(ctx: typer.Context, url: str | None) -> str | None:
    """Return the URL with the layout of `--layout`."""
    layout = ctx.find_root().params.get("layout")
    if not url or not layout:
        return url
    return StoreUrl.parse(url).with_layout(layout)


class CommandGroup(TyperGroup):
    """A group of commands that turns errors into messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command. Raises `ClickUsageError` for a wrong one."""
        try:
            return super().parse_args(ctx, [*args])
        except ClickUsageError as error:
            raise mistakes.explain(error, self, ctx, args) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Raises `ClickUsageError` with similar names."""
        if not (ctx.resilient_parsing or args[0] in self.commands or args[0].startswith("-")):
            raise ClickUsageError(mistakes.explain_unknown_command(self, ctx, args), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a `QueueError` ends it with exit code 2 or 1."""
        try:
            return super().invoke(ctx)
        except QueueError as error:
            text = str(error).replace("option 'url'", "URL", 1).replace("option 'layout'", "--layout", 1)
            echo_err(f"spark-queue: {text}")
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error


class SectionedGroup(CommandGroup):
    """The group of all commands, with sections in its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return [name for names in (*SECTIONS.values(), RFQ_COMMANDS) for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, section by section."""
        width = max(map(len, self.commands))
        sections = {"rfq": RFQ_COMMANDS, **SECTIONS} if ctx.params.get("layout") == "rfq" else SECTIONS
        help_width = formatter.width - width - 6
        for title, names in sections.items():
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(help_width)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


def group(help: str, cls: type[CommandGroup] = CommandGroup) -> typer.Typer:
    """Return a new group of commands."""
    return typer.Typer(
        cls=cls,
        help=help,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=cls is SectionedGroup,
        context_settings=CONTEXT_SETTINGS,
    )


app = group("Push, read, inspect and repair the queues of spark_queue.", SectionedGroup)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(f"spark-queue {spark_queue.__version__}")
        raise typer.Exit


@app.callback()
def common(
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="L",
            show_default=False,
            is_eager=True,  # the help depends on it
            help="The layout of the queues, as ?layout= in the URL. `--layout rfq --help` shows the commands of rfq; "
            "with it the default URL comes from RFQ_REDIS_HOST and RFQ_REDIS_PORT.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of all commands: `Command` reads `--layout`."""


# --- parsers and parameters -----------------------------------------------------------------------


def parse_seconds(text: str) -> float:
    """Parse a duration such as `10s` to seconds. Raises `BadParameter` for another text."""
    from spark_queue.options.parsers import duration  # so that --help starts fast

    try:
        return duration(text) / 1000
    except ValueError as error:
        hint = f"; did you mean {text}s?" if text.isdecimal() else ""
        raise typer.BadParameter(f"{text!r} is not {error}{hint}") from None


def parse_seconds_or_never(text: str) -> float:
    """Parse a duration to seconds, `never` to infinity."""
    return float("inf") if text == "never" else parse_seconds(text)


def parse_moment(text: str) -> datetime | timedelta:
    """Parse a moment in ISO format, by default in UTC, or a duration: that long ago.

    Raises `BadParameter` for another text.
    """
    from spark_queue.options.parsers import duration

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return timedelta(milliseconds=duration(text))
        except (ValueError, OverflowError):
            raise typer.BadParameter(
                f"{text!r} is neither a moment such as 2026-01-31T12:00 (UTC) nor a duration such as 2h (ago)"
            ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def argument(metavar: str, help: str, **kwargs: Any) -> Any:
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **kwargs)


def option(name: str, metavar: str, help: str, *names: str, **kwargs: Any) -> Any:
    """Return an option with a value."""
    return typer.Option(name, *names, metavar=metavar, help=help, show_default=False, **kwargs)


def flag(*names: str, help: str) -> Any:
    """Return an option without a value."""
    return typer.Option(*names, help=help)


def seconds(name: str, example: str, help: str, *, never: bool = False) -> Any:
    """Return an option with a duration, in seconds; `never`: it may be infinite."""
    return option(name, example, help, parser=parse_seconds_or_never if never else parse_seconds)


def moment(name: str, help: str) -> Any:
    """Return an option with a moment, or a duration before now."""
    return option(name, "WHEN", help, parser=parse_moment)


def since(happened: str) -> Any:
    """Return the option `--since` for messages that `happened` since."""
    return moment("--since", f"Only those {happened} since 2026-01-31T12:00 (UTC), or in the last 2h.")


def number(name: str, help: str) -> Any:
    """Return an option with a whole number, 1 or more."""
    return option(name, "N", help, min=1)


def check_ids(ids: list[str] | None) -> list[str] | None:
    """Return the ids. Raises `MessageError` for one that is not UTF-8: no message can have it."""
    for id in ids or ():
        check_id_and_headers(id, None)
    return ids


def complete_queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return queue names for completion; none if the database takes longer than a second."""
    found: list[str] = []
    list_queues = admin.queues.queues  # import before the clock starts

    def load() -> None:
        # A shell would show an error as a name; `list-topics` reports it.
        with suppress(Exception):
            found.extend(list_queues(str(ctx.params["url"])))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(1.0)
    return [name for name in found if name.startswith(incomplete)]


_URL = f"The store: sqlite:///queues.db, mongodb://host/db or redis://host/0 (default: ${URL_VARIABLE})."

Url = Annotated[str, argument("URL", _URL, callback=with_layout)]
MaybeUrl = Annotated[str | None, argument("URL", _URL, callback=with_layout)]
QueueArgument = Annotated[str, argument("QUEUE", "The name of the queue.", autocompletion=complete_queue_names)]
Queues = Annotated[
    list[str] | None, argument("QUEUE", "The names of queues (default: all).", autocompletion=complete_queue_names)
]
JsonFlag = Annotated[bool, flag("--json", help="Print the result as one JSON document.")]
JsonLines = Annotated[bool, flag("--json", help="Print JSON, one document per line.")]
Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask for confirmation.")]
DelayOption = Annotated[Any, seconds("--delay", "10s", "Time until they can be reserved.")]

# Options of moves, and which messages they move.
Create = Annotated[bool, flag("--create", help="Create that queue if it does not exist.")]
Ids = Annotated[
    list[str] | None, option("--id", "ID", "Only the message with this id; repeatable.", callback=check_ids)
]
Reason = Annotated[str | None, option("--reason", "TEXT", "Only those whose error contains this text.")]

# A queue, as an argument or as rfq's option.
MaybeQueue = Annotated[str | None, argument("QUEUE", "The name of the queue.", autocompletion=complete_queue_names)]
Topic = Annotated[
    str | None,
    option("--topic", "QUEUE", "The name of the queue, as rfq takes it.", "-t", autocompletion=complete_queue_names),
]


def resolve_queue(queue: str | None, topic: str | None) -> str:
    """Return the queue of the argument or of `--topic`. Raises `UsageError` for both, or none."""
    if queue is not None and topic is not None:
        raise UsageError(f"the queue is named twice: as argument {queue!r} and as --topic {topic!r}; leave one out")
    if queue is None and topic is None:
        raise UsageError("QUEUE is missing: name the queue after the URL, or with --topic (-t)")
    return str(topic if queue is None else queue)


def is_rfq(url: str) -> bool:
    """Return whether a URL has the layout `rfq`."""
    return "rfq" in parse_qs(urlsplit(url).query).get("layout", ())
