"""The commands of rfq, by its names and flags. A topic is a queue, backlog what nobody holds, nextlog what is held.

They work on every store, and do what other commands do by our words. With the layout `rfq` they print what rfq
prints, so that `alias rfq='spark-queue --layout rfq'` serves the programs that read it.
"""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_queue.cli.late import by_hand, levels, operations
from spark_queue.cli.messages import Timeout, finite
from spark_queue.cli.parse import (
    Command,
    Json,
    MaybeQueue,
    Queues,
    Topic,
    Url,
    Yes,
    app,
    flag,
    is_rfq,
    one_queue,
    option,
    seconds,
)
from spark_queue.cli.queues import size
from spark_queue.cli.show import confirm, line, printable, say, show, tell
from spark_queue.errors import MessageError

if TYPE_CHECKING:
    from spark_queue.message import Message


class Log(StrEnum):
    """The two parts of a topic."""

    backlog = "backlog"
    nextlog = "nextlog"


Which = Annotated[
    Log, option("--queue", "LOG", "backlog: what nobody holds (default); nextlog: what somebody does.", "-q")
]


@app.command(cls=Command)
def info(url: Url, queues: Queues = None, json: Json = False) -> None:
    """Show backlog and nextlog of each topic.

    In other layouts than rfq that is what `size` shows.
    """
    if json or not is_rfq(url):
        size(url, queues, json)
        return
    for one in levels.sizes(url, queues or ()):
        backlog, nextlog = one.ready + one.scheduled, one.reserved
        print(f"topic\t\t{printable(one.queue)}")
        print(f"backlog\t\t{backlog}\t\t{int(10 * math.log(backlog + 1)) * '#'}")
        print(f"nextlog\t\t{nextlog}\t\t{int(10 * math.log(nextlog + 1)) * '#'}")
        print()


@app.command("list-topics", cls=Command)
def list_topics(url: Url, json: Json = False) -> None:
    """Show the names of the queues that hold messages."""
    names(by_hand.queues(url), json)


@app.command("list-queue", cls=Command)
def list_queue(
    url: Url, name: MaybeQueue = None, topic: Topic = None, queue: Which = Log.backlog, json: Json = False
) -> None:
    """Show the ids of a queue's messages.

    The one that comes last is the first.
    """
    names(by_hand.listing(url, one_queue(name, topic), held=queue is Log.nextlog), json)


@app.command("purge-queue", cls=Command)
def purge_queue(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    queue: Which = Log.backlog,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove a queue's messages, and print their ids.

    For good. With the layout rfq it does not ask.
    """
    named, held = one_queue(name, topic), queue is Log.nextlog
    if not yes and not is_rfq(url):
        confirm(f"Remove for good what {'somebody holds' if held else 'nobody holds'} of {named}?")
    names(by_hand.purge(url, named, held=held), json)


@app.command(cls=Command)
def publish(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    message: Annotated[str | None, option("--message", "JSON", "The message.", "-m")] = None,
    front: Annotated[bool, flag("--front", "-f", help="Before all others: in the layout rfq.")] = False,
    json: Json = False,
) -> None:
    """Push one message, and print its id.

    rfq's word for `push`.
    """
    queue = one_queue(name, topic)
    if message is None:
        raise typer.BadParameter("Missing option '--message' / '-m'.")
    if not message.strip():
        raise MessageError("the message is empty, which is not JSON; nothing was pushed")
    ids: list[str] = []
    by_hand.push(url, queue, [[message.encode()]], front=front, progress=ids.extend)
    if json:
        tell({"queue": queue, "id": ids[0]})
    else:
        show(ids[0])


@app.command(cls=Command)
def consume(
    url: Url, name: MaybeQueue = None, topic: Topic = None, timeout: Timeout = "never", json: Json = False
) -> None:
    """Wait for a message, print it, and remove it.

    rfq's word for `pop`. Exit code 1 where --timeout ends it.
    """

    def out(taken: list[Message]) -> None:
        for one in taken:
            if is_rfq(url) and not json:
                print(one.payload)  # as rfq does, which prints Python's notation
            else:
                line(one if json else one.payload)
        sys.stdout.flush()

    queue = one_queue(name, topic)
    try:
        if not by_hand.pop(url, queue, out, timeout=finite(timeout)):
            say(f"no message of {queue} is ready{operations.suggest(url, queue)}")
            raise typer.Exit(1)
    except KeyboardInterrupt:
        if not is_rfq(url):
            raise
        # rfq ends so: nobody waits any longer, and nothing is wrong


@app.command(cls=Command)
def harvest(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    older_than: Annotated[
        Any, option("--older-than", "10m", "Only what was published longer ago: in the layout rfq.", parser=seconds)
    ] = None,
    json: Json = False,
) -> None:
    """Give back what anybody holds of a queue.

    At once, and with no try counted; the ids are printed. `release` does it for one holder.
    """
    names(by_hand.harvest(url, one_queue(name, topic), older_than), json)


def names(found: list[str], json: bool) -> None:
    """Names, one a line."""
    if json:
        tell(found)
    else:
        for one in found:
            show(one)
