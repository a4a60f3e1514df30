"""Messages by hand: pushed, taken, settled, looked at, moved."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from spark_queue.cli.late import by_hand, operations
from spark_queue.cli.parse import (
    Command,
    Ids,
    Json,
    JsonLines,
    MaybeQueue,
    Queue,
    Topic,
    Url,
    app,
    argument,
    flag,
    lasting,
    moment,
    one_queue,
    option,
    seconds,
)
from spark_queue.cli.show import Progressing, cut, dumped, line, plural, say, show, table, tell
from spark_queue.errors import UsageError

if TYPE_CHECKING:
    from spark_queue.message import Message

#: Bytes that are read at once: what is there is pushed, so that a pipe that flows slowly is not kept waiting.
READ = 1 << 20


class Form(StrEnum):
    """What a line of a push tells."""

    json = "json"
    text = "text"
    message = "message"


Tag = Annotated[str, argument("TAG", "What `reserve` told, or a part of it: a batch (…/1), a consumer.")]
SomeIds = Annotated[list[str] | None, argument("ID", "These messages of it (default: all).")]
Delay = Annotated[Any, option("--delay", "10s", "Nobody can reserve them before that.", parser=seconds)]
Timeout = Annotated[Any, option("--timeout", "5s", "Wait so long for the first one, or `never` end.", parser=lasting)]


# --- in -------------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def push(
    url: Url,
    queue: Queue,
    file: Annotated[Path | None, argument("FILE", "Lines to push (default, and -: stdin).")] = None,
    form: Annotated[
        Form, option("--as", "FORM", "What a line is: json (a payload), text, or message, as `pop --json` prints it.")
    ] = Form.json,
    header: Annotated[list[str] | None, option("--header", "K=V", "A header of all of them; repeatable.")] = None,
    delay: Delay = None,
    mature: Annotated[Any, option("--mature", "WHEN", "They may be reserved from then on.", parser=moment)] = None,
    front: Annotated[bool, flag("--front", help="Before all others: in the layout rfq.")] = False,
    json: Json = False,
) -> None:
    """Push messages, one a line.

    A file is checked as a whole before any of it is pushed. What comes through a pipe is pushed as it comes; where a
    line is wrong the message tells what was pushed before it.
    """
    common = by_hand.Common(pairs(header or []), when(mature), delay)
    with opened(file) as source:
        if source.seekable():  # what can be read twice is checked as a whole before any of it is pushed
            by_hand.check(batches(source), form.value, common)
            source.seek(0)
        with Progressing("pushing", size_of(source)) as bar:
            pushed = by_hand.push(
                url, queue, batches(source, bar), form.value, common, front=front, progress=bar.count
            )
    if json:
        tell({"queue": queue, "pushed": pushed})
    else:
        show(f"{plural(pushed, 'message')} pushed to {queue}")


def opened(file: Path | None) -> IO[bytes]:
    """The file, or stdin."""
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None


def size_of(source: IO[bytes]) -> int | None:
    """Its bytes, if that is known."""
    if not source.seekable():
        return None
    size = source.seek(0, io.SEEK_END)
    source.seek(0)
    return size


def batches(source: IO[bytes], bar: Progressing | None = None) -> Iterator[Sequence[bytes]]:
    """The lines, as they come."""
    rest = b""
    while chunk := source.read1(READ):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
        if bar is not None:
            bar.read(len(chunk))
    if rest:
        yield [rest]


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Headers of the form K=V."""
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise typer.BadParameter(f"--header {text!r} is not of the form K=V")
        found[key] = value
    return found


def when(mature: Any) -> Any:
    """A moment that lies before us, or none. Raises `UsageError` for a duration, which means the past elsewhere."""
    if mature is not None and not hasattr(mature, "tzinfo"):
        raise UsageError("--mature takes a moment such as 2026-01-31T12:00; for a duration there is --delay")
    return mature


# --- out ------------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def pop(
    url: Url,
    queue: Queue,
    limit: Annotated[int, option("--limit", "N", "Most messages (default: 1).", min=1)] = 1,
    everything: Annotated[bool, flag("--all", help="All of them, whatever --limit says.")] = False,
    timeout: Timeout = "0s",
    json: JsonLines = False,
) -> None:
    """Print messages and remove them, a payload a line.

    Exit code 1 where none came. What could not be printed is not removed.
    """

    def out(taken: list[Message]) -> None:
        for one in taken:
            line(one if json else one.payload)
        sys.stdout.flush()

    if not by_hand.pop(url, queue, out, limit=None if everything else limit, timeout=finite(timeout)):
        say(f"no message of {queue} is ready{operations.suggest(url, queue)}")
        raise typer.Exit(1)


def finite(duration: float) -> float | None:
    """Seconds, `None` for ever."""
    return None if duration == float("inf") else duration


@app.command(cls=Command)
def reserve(
    url: Url,
    queue: Queue,
    limit: Annotated[int, option("--limit", "N", "Most messages (default: 1).", min=1)] = 1,
    lease: Annotated[
        Any, option("--lease", "120s", "They are held so long, or `never` given back.", parser=lasting)
    ] = "120s",
    timeout: Timeout = "0s",
    consumer: Annotated[str, option("--consumer", "NAME", "Who holds them (default: cli).")] = "cli",
    json: Json = False,
) -> None:
    """Take messages and hold them under a tag.

    `commit` and `rollback` settle what a tag holds. Exit code 1 where no message came.
    """
    taken = by_hand.reserve(url, queue, limit, lease=finite(lease), timeout=finite(timeout), consumer=consumer)
    if json:
        tell({"queue": queue, "tag": taken.tag if taken.messages else None, "messages": taken.messages})
    elif taken.messages:
        rows(taken.messages)
        show(f"{plural(len(taken.messages), 'message')} of {queue} held under {taken.tag}")
    if not taken.messages:
        say(f"no message of {queue} is ready{operations.suggest(url, queue)}")
        raise typer.Exit(1)


def rows(messages: Sequence[Message]) -> None:
    """Messages as a table."""
    heads = ("id", "mature (UTC)", "tries", "headers", "payload")
    table(heads, ((m.id, m.mature, m.tries, dumped(m.headers) if m.headers else "", text(m)) for m in messages))


def text(one: Message) -> str:
    """The beginning of a payload."""
    return cut(one.payload if isinstance(one.payload, str) else dumped(one.payload))


@app.command(cls=Command)
def commit(
    url: Url,
    queue: Queue,
    tag: Tag,
    ids: SomeIds = None,
    history: Annotated[Any, option("--history", "7d", "Keep them so long in the history.", parser=seconds)] = "0s",
    json: Json = False,
) -> None:
    """Remove messages that a tag holds: they are done.

    Exit code 1 where it no longer holds them.
    """
    done = by_hand.commit(url, queue, tag, ids, history=history)
    if json:
        tell({"queue": queue, "tag": tag, "committed": done})
    else:
        show(f"{plural(done, 'message')} of {queue} committed")
    complain(done, tag, ids)


@app.command(cls=Command)
def rollback(
    url: Url,
    queue: Queue,
    tag: Tag,
    ids: SomeIds = None,
    delay: Delay = "0s",
    max_tries: Annotated[
        int | None, option("--max-tries", "N", "After so many failures one is a dead letter.", min=1)
    ] = None,
    dead: Annotated[str | None, option("--dead", "Q", "The queue for dead letters (default: <queue>.dead).")] = None,
    json: Json = False,
) -> None:
    """Give back messages that a tag holds, as failed.

    Exit code 1 where it no longer holds them.
    """
    given, buried = by_hand.rollback(url, queue, tag, ids, delay=delay, max_tries=max_tries, dead=dead)
    if json:
        tell({"queue": queue, "tag": tag, "rolled_back": given, "dead": buried})
    else:
        grave = f", {plural(buried, 'dead letter')} to {dead or f'{queue}.dead'}" if buried else ""
        show(f"{plural(given, 'message')} of {queue} given back{grave}")
    complain(given + buried, tag, ids)


def complain(done: int, tag: str, ids: Sequence[str] | None) -> None:
    """Say what was not held, and end with 1."""
    if ids and done < len(set(ids)):
        say(f"{len(set(ids)) - done:,} of these are not held under {tag}")
        raise typer.Exit(1)
    if not done:
        say(f"nothing is held under {tag}")
        raise typer.Exit(1)


# --- looked at, and moved -------------------------------------------------------------------------------------------


@app.command(cls=Command)
def move(
    url: Url,
    queue: Queue,
    to: Annotated[str, argument("TO", "The queue they go to.")],
    id: Ids = None,
    limit: Annotated[int | None, option("--limit", "N", "The first ones, at most so many.", min=1)] = None,
    create: Annotated[bool, flag("--create", help="Make that queue, if there is none.")] = False,
    json: Json = False,
) -> None:
    """Move messages that nobody holds to another queue."""
    with Progressing("moving") as bar:
        moved = by_hand.move(url, queue, to, ids=id, limit=limit, create=create, progress=bar.step)
    if json:
        tell({"queue": queue, "to": to, "moved": moved})
    else:
        show(f"{plural(moved, 'message')} moved from {queue} to {to}")


@app.command(cls=Command)
def peek(
    url: Url,
    queue: MaybeQueue = None,
    topic: Topic = None,
    msgid: Annotated[
        str | None,
        option("--msgid", "ID", "This one: print its payload alone; exit code 1 if it is not there.", "-m"),
    ] = None,
    limit: Annotated[int, option("--limit", "N", "The first ones, at most so many (default: 10).", min=1)] = 10,
    json: JsonLines = False,
) -> None:
    """Show the first messages, and change nothing.

    Those that somebody holds are among them.
    """
    name = one_queue(queue, topic)
    if msgid is not None:
        found = by_hand.peek(url, name, None, [msgid])
        if not found:
            raise typer.Exit(1)
        line(found[0] if json else found[0].payload)
        return
    found = by_hand.peek(url, name, limit)
    if json:
        for one in found:
            line(one)
    elif found:
        rows(found)
    else:
        say(f"{name} holds no messages{operations.suggest(url, name)}")
