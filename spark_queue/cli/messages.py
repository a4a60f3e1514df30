"""Messages: push, pop, reserve, commit, roll back, peek, move."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from spark_queue.cli.lazy import admin_push, consume, queues
from spark_queue.cli.output import (
    ProgressBar,
    echo_err,
    print_json,
    print_json_line,
    print_table,
    print_text,
    shorten,
    to_json,
)
from spark_queue.cli.params import (
    Command,
    Ids,
    JsonFlag,
    JsonLines,
    MaybeQueue,
    QueueArgument,
    Topic,
    Url,
    app,
    argument,
    check_ids,
    flag,
    is_rfq,
    option,
    parse_moment,
    parse_seconds,
    parse_seconds_or_never,
    resolve_queue,
)
from spark_queue.cli.waiting import none_if_never, nothing_ready, say_if_paused
from spark_queue.errors import UsageError, plural, unreadable_file
from spark_queue.options.queue_names import dead_letter_queue

if TYPE_CHECKING:
    from spark_queue.messages.message import Message

#: Maximum number of bytes per read. A read does not wait for more, so lines of a slow pipe are
#: pushed at once.
READ_BYTES = 1 << 20


class PushForm(StrEnum):
    """The content of a line: see `--as`."""

    json = "json"
    text = "text"
    message = "message"


Tag = Annotated[str, argument("TAG", "The tag that `reserve` printed, or the beginning of it: a batch, a consumer.")]
IdsArgument = Annotated[
    list[str] | None, argument("ID", "Ids of messages (default: all that the tag holds).", callback=check_ids)
]
DelayOption = Annotated[Any, option("--delay", "10s", "Time until they can be reserved.", parser=parse_seconds)]
Timeout = Annotated[
    Any,
    option("--timeout", "5s", "Time to wait for the first message; `never`: forever.", parser=parse_seconds_or_never),
]


# --- push -----------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def push(
    url: Url,
    queue: QueueArgument,
    file: Annotated[Path | None, argument("FILE", "The file with the lines (default, and -: stdin).")] = None,
    form: Annotated[
        PushForm,
        option(
            "--as",
            "FORM",
            "What a line is: json (a payload; the default), text, or message (as `pop --json` prints it).",
        ),
    ] = PushForm.json,
    header: Annotated[list[str] | None, option("--header", "K=V", "A header for all messages; repeatable.")] = None,
    delay: DelayOption = None,
    mature: Annotated[
        Any,
        option(
            "--mature",
            "WHEN",
            "Moment from which they can be reserved, such as 2026-01-31T12:00 (UTC).",
            parser=parse_moment,
        ),
    ] = None,
    front: Annotated[bool, flag("--front", help="Put them before all others; layout rfq only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Push messages, one per line.

    A file is checked before any line of it is pushed. Lines from a pipe are pushed as they come: if
    one is wrong, the error says how many were pushed before it.
    """
    defaults = admin_push.MessageDefaults(parse_headers(header or []), check_mature(mature), delay)
    with open_input(file) as source:
        if source.seekable():  # a file can be read twice, so it is checked first
            admin_push.check_lines(read_lines(source), form.value, defaults)
            source.seek(0)
        with ProgressBar("pushing", size_of(source)) as bar:
            pushed = admin_push.push(
                url, queue, read_lines(source, bar), form.value, defaults, front=front, progress=bar.count
            )
    if json:
        print_json({"queue": queue, "pushed": pushed})
    else:
        print_text(f"{plural(pushed, 'message')} pushed to {queue}")


def open_input(file: Path | None) -> IO[bytes]:
    """Open the file, or return stdin. Raises `UsageError` if it cannot be read."""
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise unreadable_file(error, file) from None


def size_of(source: IO[bytes]) -> int | None:
    """Return the size in bytes, if it is known."""
    if not source.seekable():
        return None
    size = source.seek(0, io.SEEK_END)
    source.seek(0)
    return size


def read_lines(source: IO[bytes], bar: ProgressBar | None = None) -> Iterator[Sequence[bytes]]:
    """Yield lists of lines, as they arrive."""
    rest = b""
    while chunk := source.read1(READ_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        if bar is not None:
            bar.read(len(chunk))
    if rest:
        yield [rest]


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Parse headers of the form K=V. Raises `BadParameter` for another form."""
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise typer.BadParameter(f"--header {text!r} must be K=V, such as --header gate=B12")
        found[key] = value
    return found


def check_mature(mature: Any) -> Any:
    """Return the moment of `--mature`. Raises `UsageError` for a duration: that is `--delay`."""
    if mature is not None and not hasattr(mature, "tzinfo"):
        raise UsageError("--mature takes a moment such as 2026-01-31T12:00 (UTC); for a duration use --delay")
    return mature


# --- consume --------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def pop(
    url: Url,
    queue: QueueArgument,
    limit: Annotated[int, option("--limit", "N", "Maximum number of messages (default: 1).", min=1)] = 1,
    everything: Annotated[bool, flag("--all", help="Pop all messages that are ready; ignore --limit.")] = False,
    timeout: Timeout = "0s",
    json: JsonLines = False,
) -> None:
    """Print messages and remove them, one payload per line.

    Exit code 1 if no message is ready. A message that could not be printed stays in the queue.
    """

    def print_payloads(taken: list[Message]) -> None:
        for one in taken:
            print_json_line(one if json else one.payload)
        sys.stdout.flush()

    say_if_paused(url, queue, timeout)
    if not consume.pop(
        url, queue, print_payloads, limit=None if everything else limit, timeout=none_if_never(timeout)
    ):
        echo_err(nothing_ready(url, queue))
        raise typer.Exit(1)


@app.command(cls=Command)
def reserve(
    url: Url,
    queue: QueueArgument,
    limit: Annotated[int, option("--limit", "N", "Maximum number of messages (default: 1).", min=1)] = 1,
    lease: Annotated[
        Any,
        option(
            "--lease",
            "120s",
            "Time until others can reserve them again (default: 120s); `never`: not before rollback or release.",
            parser=parse_seconds_or_never,
        ),
    ] = "120s",
    timeout: Timeout = "0s",
    consumer: Annotated[
        str, option("--consumer", "NAME", "Name of the consumer, the first part of the tag (default: cli).")
    ] = "cli",
    json: JsonFlag = False,
) -> None:
    """Reserve messages under a tag: no other consumer gets them.

    `commit` removes them, `rollback` returns them to the queue. Exit code 1 if no message is ready.
    """
    say_if_paused(url, queue, timeout)
    reserved = consume.reserve(
        url, queue, limit, lease=none_if_never(lease), timeout=none_if_never(timeout), consumer=consumer
    )
    if json:
        print_json(
            {"queue": queue, "tag": reserved.tag if reserved.messages else None, "messages": reserved.messages}
        )
    elif reserved.messages:
        print_messages(reserved.messages)
        print_text(f"{plural(len(reserved.messages), 'message')} of {queue} reserved under tag {reserved.tag}")
    if not reserved.messages:
        echo_err(nothing_ready(url, queue))
        raise typer.Exit(1)


def print_messages(messages: Sequence[Message]) -> None:
    """Print messages as a table."""
    heads = ("id", "mature (UTC)", "tries", "headers", "payload")
    print_table(
        heads, ((m.id, m.mature, m.tries, to_json(m.headers) if m.headers else "", payload_text(m)) for m in messages)
    )


def payload_text(one: Message) -> str:
    """Return the beginning of a payload."""
    return shorten(one.payload if isinstance(one.payload, str) else to_json(one.payload))


@app.command(cls=Command)
def commit(
    url: Url,
    queue: QueueArgument,
    tag: Tag,
    ids: IdsArgument = None,
    history: Annotated[
        Any,
        option(
            "--history", "7d", "Time for which the history keeps them (default: not at all).", parser=parse_seconds
        ),
    ] = "0s",
    json: JsonFlag = False,
) -> None:
    """Remove reserved messages: they are processed.

    Exit code 1 if the tag no longer holds them.
    """
    done = consume.commit(url, queue, tag, ids, history=history)
    if json:
        print_json({"queue": queue, "tag": tag, "committed": done})
    else:
        print_text(f"{plural(done, 'message')} of {queue} committed")
    check_settled(done, queue, tag, ids)


@app.command(cls=Command)
def rollback(
    url: Url,
    queue: QueueArgument,
    tag: Tag,
    ids: IdsArgument = None,
    delay: DelayOption = "0s",
    max_tries: Annotated[
        int | None,
        option("--max-tries", "N", "Number of failures after which a message becomes a dead letter.", min=1),
    ] = None,
    dead: Annotated[str | None, option("--dead", "Q", "The queue for dead letters (default: <queue>.dead).")] = None,
    json: JsonFlag = False,
) -> None:
    """Return reserved messages to the queue, as failed.

    Their tries grow by one. Exit code 1 if the tag no longer holds them.
    """
    rolled_back, dead_lettered = consume.rollback(url, queue, tag, ids, delay=delay, max_tries=max_tries, dead=dead)
    if json:
        print_json({"queue": queue, "tag": tag, "rolled_back": rolled_back, "dead": dead_lettered})
    else:
        dead_text = (
            f", {plural(dead_lettered, 'dead letter')} to {dead or dead_letter_queue(queue)}" if dead_lettered else ""
        )
        print_text(f"{plural(rolled_back, 'message')} of {queue} rolled back{dead_text}")
    check_settled(rolled_back + dead_lettered, queue, tag, ids)


def check_settled(done: int, queue: str, tag: str, ids: Sequence[str] | None) -> None:
    """End with exit code 1 and a note if the tag holds no messages, or not all of `ids`."""
    if ids and done < len(set(ids)):
        echo_err(f"{len(set(ids)) - done:,} of {plural(len(set(ids)), 'id')} not held under tag {tag}")
        raise typer.Exit(1)
    if not done:
        echo_err(f"tag {tag} holds no messages of {queue}")
        raise typer.Exit(1)


# --- move and peek --------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def move(
    url: Url,
    queue: QueueArgument,
    to: Annotated[str, argument("TO", "The queue to move them to.")],
    id: Ids = None,
    limit: Annotated[
        int | None, option("--limit", "N", "Maximum number of messages: the first in order.", min=1)
    ] = None,
    create: Annotated[bool, flag("--create", help="Create that queue if it does not exist.")] = False,
    json: JsonFlag = False,
) -> None:
    """Move messages to another queue of the store.

    Reserved messages stay.
    """
    with ProgressBar("moving") as bar:
        moved = queues.move(url, queue, to, ids=id, limit=limit, create=create, progress=bar.step)
    if json:
        print_json({"queue": queue, "to": to, "moved": moved})
    else:
        print_text(f"{plural(moved, 'message')} moved from {queue} to {to}")


@app.command(cls=Command)
def peek(
    url: Url,
    queue: MaybeQueue = None,
    topic: Topic = None,
    msgid: Annotated[
        str | None,
        option(
            "--msgid",
            "ID",
            "Print only the payload of this message; exit code 1 if the queue does not hold it.",
            "-m",
        ),
    ] = None,
    limit: Annotated[int, option("--limit", "N", "Maximum number of messages (default: 10).", min=1)] = 10,
    json: JsonLines = False,
) -> None:
    """Show the first messages without reserving them.

    Reserved and scheduled messages are shown, too.
    """
    name = resolve_queue(queue, topic)
    if msgid is not None:
        found = queues.peek(url, name, None, [msgid])
        if not found:
            if not is_rfq(url):
                echo_err(f"{name} holds no message with id {msgid!r}")
            raise typer.Exit(1)
        print_json_line(found[0] if json else found[0].payload)
        return
    found = queues.peek(url, name, limit)
    if json:
        for one in found:
            print_json_line(one)
    elif found:
        print_messages(found)
    else:
        echo_err(f"{name} is empty")
