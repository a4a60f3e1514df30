"""Messages: push, pop, reserve, commit, roll back, peek, move."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from spark_queue import admin
from spark_queue.cli.output import (
    ProgressBar,
    echo_err,
    exit_with_note,
    print_json,
    print_json_line,
    print_result,
    print_table,
    print_text,
    shorten_payload,
    to_json,
)
from spark_queue.cli.params import (
    Command,
    Create,
    DelayOption,
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
    moment,
    number,
    option,
    resolve_queue,
    seconds,
)
from spark_queue.cli.waiting import explain_nothing_ready, say_if_paused
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
Limit = Annotated[int, number("--limit", "Maximum number of messages (default: 1).")]
Timeout = Annotated[
    Any, seconds("--timeout", "5s", "Time to wait for the first message; `never`: forever.", never=True)
]


# --- push -----------------------------------------------------------------------------------------


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
        Any, moment("--mature", "Moment from which they can be reserved, such as 2026-01-31T12:00 (UTC).")
    ] = None,
    front: Annotated[bool, flag("--front", help="Put them before all others; layout rfq only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Push messages, one per line.

    A file is checked before any line of it is pushed. Lines from a pipe are pushed as they come: if
    one is wrong, the error says how many were pushed before it.
    """
    if mature is not None and not hasattr(mature, "tzinfo"):
        raise UsageError("--mature takes a moment such as 2026-01-31T12:00 (UTC); for a duration use --delay")
    defaults = admin.push.MessageDefaults(parse_headers(header or []), mature, delay)
    with open_input(file) as source:
        size = None
        if source.seekable():  # a file can be read twice, so it is checked first
            admin.push.check_lines(read_lines(source), form.value, defaults)
            size = source.tell()
            source.seek(0)
        with ProgressBar("pushing", size) as bar:
            lines = read_lines(source, bar)
            pushed = admin.push.push(url, queue, lines, form.value, defaults, front=front, progress=bar.count)
    print_result({"queue": queue, "pushed": pushed}, f"{plural(pushed, 'message')} pushed to {queue}", json=json)


def open_input(file: Path | None) -> IO[bytes]:
    """Open the file, or return stdin. Raises `UsageError` if it cannot be read."""
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise unreadable_file(error, file) from None


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


# --- consume --------------------------------------------------------------------------------------


@app.command(cls=Command)
def pop(
    url: Url,
    queue: QueueArgument,
    limit: Limit = 1,
    everything: Annotated[bool, flag("--all", help="Pop all messages that are ready; ignore --limit.")] = False,
    timeout: Timeout = "0s",
    json: JsonLines = False,
) -> None:
    """Print messages and remove them, one payload per line.

    Exit code 1 if no message is ready. A message that could not be printed stays in the queue.
    """
    say_if_paused(url, queue, timeout)
    handle = partial(print_payloads, json=json)
    if not admin.consume.pop(url, queue, handle, limit=None if everything else limit, timeout=timeout):
        exit_with_note(explain_nothing_ready(url, queue))


def print_payloads(taken: Sequence[Message], json: bool) -> None:
    """Print a payload per line, or whole messages as JSON."""
    for one in taken:
        print_json_line(one if json else one.payload)
    sys.stdout.flush()


@app.command(cls=Command)
def reserve(
    url: Url,
    queue: QueueArgument,
    limit: Limit = 1,
    lease: Annotated[
        Any,
        seconds(
            "--lease",
            "120s",
            "Time until others can reserve them again (default: 120s); `never`: not before rollback or release.",
            never=True,
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
    lease = None if lease == float("inf") else lease
    reserved = admin.consume.reserve(url, queue, limit, lease=lease, timeout=timeout, consumer=consumer)
    found = reserved.messages
    if json:
        print_json({"queue": queue, "tag": reserved.tag if found else None, "messages": found})
    elif found:
        print_messages(found)
        print_text(f"{plural(len(found), 'message')} of {queue} reserved under tag {reserved.tag}")
    if not found:
        exit_with_note(explain_nothing_ready(url, queue))


def print_messages(messages: Sequence[Message]) -> None:
    """Print messages as a table."""
    heads = ("id", "pushed (UTC)", "mature (UTC)", "tries", "headers", "payload")
    rows = (
        (
            one.id, one.pushed, one.mature, one.tries, to_json(one.headers) if one.headers else "",
            shorten_payload(one.payload),
        )
        for one in messages
    )  # fmt: skip
    print_table(heads, rows)


@app.command(cls=Command)
def commit(
    url: Url,
    queue: QueueArgument,
    tag: Tag,
    ids: IdsArgument = None,
    history: Annotated[
        Any, seconds("--history", "7d", "Time for which the history keeps them (default: not at all).")
    ] = "0s",
    json: JsonFlag = False,
) -> None:
    """Remove reserved messages: they are processed.

    Exit code 1 if the tag no longer holds them.
    """
    done = admin.consume.commit(url, queue, tag, ids, history=history)
    text = f"{plural(done, 'message')} of {queue} committed"
    print_result({"queue": queue, "tag": tag, "committed": done}, text, json=json)
    check_settled(done, queue, tag, ids)


@app.command(cls=Command)
def rollback(
    url: Url,
    queue: QueueArgument,
    tag: Tag,
    ids: IdsArgument = None,
    delay: DelayOption = "0s",
    max_tries: Annotated[
        int | None, number("--max-tries", "Number of failures after which a message becomes a dead letter.")
    ] = None,
    dead: Annotated[str | None, option("--dead", "Q", "The queue for dead letters (default: <queue>.dead).")] = None,
    json: JsonFlag = False,
) -> None:
    """Return reserved messages to the queue, as failed.

    Their tries grow by one. Exit code 1 if the tag no longer holds them.
    """
    rolled_back, died = admin.consume.rollback(url, queue, tag, ids, delay=delay, max_tries=max_tries, dead=dead)
    text = f"{plural(rolled_back, 'message')} of {queue} rolled back"
    if died:
        text += f", {plural(died, 'dead letter')} to {dead or dead_letter_queue(queue)}"
    print_result({"queue": queue, "tag": tag, "rolled_back": rolled_back, "dead": died}, text, json=json)
    check_settled(rolled_back + died, queue, tag, ids)


def check_settled(done: int, queue: str, tag: str, ids: Sequence[str] | None) -> None:
    """End with exit code 1 and a note if the tag holds no messages, or not all of `ids`."""
    wanted = len(set(ids or ()))
    if done < wanted:
        exit_with_note(f"{wanted - done:,} of {plural(wanted, 'id')} not held under tag {tag}")
    if not done:
        exit_with_note(f"tag {tag} holds no messages of {queue}")


# --- move and peek --------------------------------------------------------------------------------


@app.command(cls=Command)
def move(
    url: Url,
    queue: QueueArgument,
    to: Annotated[str, argument("TO", "The queue to move them to.")],
    id: Ids = None,
    limit: Annotated[int | None, number("--limit", "Maximum number of messages: the first in order.")] = None,
    create: Create = False,
    json: JsonFlag = False,
) -> None:
    """Move messages to another queue of the store.

    Reserved messages stay.
    """
    with ProgressBar("moving") as bar:
        moved = admin.queues.move(url, queue, to, ids=id, limit=limit, create=create, progress=bar.step)
    text = f"{plural(moved, 'message')} moved from {queue} to {to}"
    print_result({"queue": queue, "to": to, "moved": moved}, text, json=json)


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
    limit: Annotated[int, number("--limit", "Maximum number of messages (default: 10).")] = 10,
    json: JsonLines = False,
) -> None:
    """Show the first messages without reserving them.

    Reserved and scheduled messages are shown, too.
    """
    name = resolve_queue(queue, topic)
    if msgid is not None:
        found = admin.queues.peek(url, name, None, [msgid])
        if not found:
            if not is_rfq(url):
                echo_err(f"{name} holds no message with id {msgid!r}")
            raise typer.Exit(1)
        print_json_line(found[0] if json else found[0].payload)
        return
    found = admin.queues.peek(url, name, limit)
    if json:
        for one in found:
            print_json_line(one)
    elif found:
        print_messages(found)
    else:
        echo_err(f"{name} is empty")
