"""The commands of rfq, with its names and flags.

A topic is a queue. Its backlog holds the free messages, its nextlog the reserved ones. The commands
work on every store. With the layout `rfq`, they print the output of rfq, so programs that read it
can use `alias rfq='spark-queue --layout rfq'`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from os import fsencode
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_queue import admin
from spark_queue.cli.messages import Timeout, print_payloads
from spark_queue.cli.output import confirm, exit_with_note, print_result, printable
from spark_queue.cli.params import (
    Command,
    JsonFlag,
    MaybeQueue,
    Queues,
    Topic,
    Url,
    Yes,
    app,
    flag,
    is_rfq,
    option,
    resolve_queue,
    seconds,
)
from spark_queue.cli.queues import size
from spark_queue.cli.waiting import explain_nothing_ready, say_if_paused
from spark_queue.errors import MessageError

if TYPE_CHECKING:
    from spark_queue.messages.message import Message


class TopicPart(StrEnum):
    """The two parts of a topic."""

    backlog = "backlog"
    nextlog = "nextlog"


TopicPartOption = Annotated[
    TopicPart, option("--queue", "LOG", "backlog: free messages (default); nextlog: reserved ones.", "-q")
]


@app.command(cls=Command)
def info(url: Url, queues: Queues = None, json: JsonFlag = False) -> None:
    """Show the backlog and nextlog of each topic.

    With other layouts than rfq it prints what `size` prints.
    """
    if json or not is_rfq(url):
        size(url, queues, json=json)
        return
    for one in admin.sizes.sizes(url, queues) if queues else topics_with_messages(url):
        backlog, nextlog = one.ready + one.scheduled, one.reserved
        print(f"topic\t\t{printable(one.queue)}")
        print(f"backlog\t\t{backlog}\t\t{int(10 * math.log(backlog + 1)) * '#'}")
        print(f"nextlog\t\t{nextlog}\t\t{int(10 * math.log(nextlog + 1)) * '#'}")
        print()


@app.command("list-topics", cls=Command)
def list_topics(url: Url, json: JsonFlag = False) -> None:
    """Show the names of the queues."""
    names = [one.queue for one in topics_with_messages(url)] if is_rfq(url) else admin.queues.queues(url)
    print_result(names, *names, json=json)


def topics_with_messages(url: str) -> list[admin.sizes.QueueSummary]:
    """Return the topics with messages; rfq knows no others."""
    return [one for one in admin.sizes.sizes(url) if one.total]


@app.command("list-queue", cls=Command)
def list_queue(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    queue: TopicPartOption = TopicPart.backlog,
    json: JsonFlag = False,
) -> None:
    """Show the ids of a queue's messages, the last first."""
    ids = admin.queues.list_ids(url, resolve_queue(name, topic), held=queue is TopicPart.nextlog)
    print_result(ids, *ids, json=json)


@app.command("purge-queue", cls=Command)
def purge_queue(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    queue: TopicPartOption = TopicPart.backlog,
    yes: Yes = False,
    json: JsonFlag = False,
) -> None:
    """Remove a queue's messages, and print their ids.

    They cannot be restored. With the layout rfq it does not ask for confirmation.
    """
    named, held = resolve_queue(name, topic), queue is TopicPart.nextlog
    if not yes and not is_rfq(url):
        confirm(f"Remove all {'reserved' if held else 'free'} messages of {named}? They cannot be restored.")
    ids = admin.queues.purge(url, named, held=held)
    print_result(ids, *ids, json=json)


@app.command(cls=Command)
def publish(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    message: Annotated[str | None, option("--message", "JSON", "The payload in JSON.", "-m")] = None,
    front: Annotated[bool, flag("--front", "-f", help="Put it before all others; layout rfq only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Push one message, and print its id."""
    queue = resolve_queue(name, topic)
    if message is None:
        raise typer.BadParameter("--message (-m) is missing: the payload in JSON")
    if not message.strip():
        raise MessageError("--message is empty, which is not JSON; nothing was pushed")
    ids: list[str] = []
    admin.push.push(url, queue, [[fsencode(message)]], front=front, progress=ids.extend)
    print_result({"queue": queue, "id": ids[0]}, ids[0], json=json)


@app.command(cls=Command)
def consume(
    url: Url, name: MaybeQueue = None, topic: Topic = None, timeout: Timeout = "never", json: JsonFlag = False
) -> None:
    """Wait for a message, print it, and remove it.

    Like `pop --timeout never`. Exit code 1 if no message comes within --timeout.
    """

    def handle(taken: list[Message]) -> None:
        if is_rfq(url) and not json:
            for one in taken:
                print(one.payload, flush=True)  # like rfq, in Python's notation
        else:
            print_payloads(taken, json)

    queue = resolve_queue(name, topic)
    say_if_paused(url, queue, timeout)
    try:
        if not admin.consume.pop(url, queue, handle, timeout=timeout):
            exit_with_note(explain_nothing_ready(url, queue))
    except KeyboardInterrupt:
        if not is_rfq(url):
            raise
        # like rfq, with exit code 0


@app.command(cls=Command)
def harvest(
    url: Url,
    name: MaybeQueue = None,
    topic: Topic = None,
    older_than: Annotated[
        Any, seconds("--older-than", "10m", "Only messages published longer ago; layout rfq only.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Return all reserved messages to the queue.

    It prints their ids. They are ready at once, and their tries do not change. `release` is for one
    tag.
    """
    ids = admin.consume.harvest(url, resolve_queue(name, topic), older_than)
    print_result(ids, *ids, json=json)
