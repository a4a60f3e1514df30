"""The layout of a queue: one record per message, or buckets."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

from spark_queue import admin
from spark_queue.cli.output import print_result
from spark_queue.cli.params import (
    Command,
    JsonFlag,
    QueueArgument,
    Url,
    app,
    argument,
    complete_queue_names,
    number,
    option,
)
from spark_queue.errors import plural


class LayoutKind(StrEnum):
    """The layouts of a queue."""

    single = "single"
    bucket = "bucket"


@app.command(cls=Command)
def layout(
    url: Url,
    queue: QueueArgument,
    to: Annotated[
        LayoutKind | None,
        argument("LAYOUT", "The new layout: one record per message, or buckets of many (default: show it)."),
    ] = None,
    bucket_size: Annotated[
        int | None, number("--bucket-size", "Maximum number of messages in a bucket (default: 4096).")
    ] = None,
    compression: Annotated[
        str | None, option("--compression", "lz4|zstd", "Compression of buckets (default: lz4).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show or set the layout of a queue.

    A new layout applies to messages that are pushed from now on.
    """
    if to is not None:
        from spark_queue.messages.buckets import Buckets  # so that --help starts fast

        defaults = Buckets()
        wanted = Buckets(bucket_size or defaults.size, compression or defaults.compression)
        found = wanted if to is LayoutKind.bucket else None
        admin.set_layout(url, queue, found)
    else:
        found = admin.layout(url, queue)
    facts = {"queue": queue, "layout": "single"}
    text = f"{queue}: single, one record per message"
    if found:
        facts = {"queue": queue, "layout": "bucket", **asdict(found)}
        text = f"{queue}: bucket, up to {plural(found.size, 'message')} each, compressed with {found.compression}"
    print_result(facts, text, json=json)


@app.command(cls=Command)
def compact(
    url: Url,
    queue: Annotated[
        str | None,
        argument("QUEUE", "The name of the queue (default: the SQLite file).", autocompletion=complete_queue_names),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Merge messages into buckets, or shrink a SQLite file.

    With a queue: merges ready messages that are single or in small buckets. Without: shrinks the
    file to its content; writes wait meanwhile. Producers and consumers can go on.
    """
    if queue is None:
        saved = admin.shrink(url)
        print_result({"bytes": saved}, f"the file is {saved:,} bytes smaller", json=json)
        return
    fewer = admin.compact(url, queue)
    print_result({"queue": queue, "fewer": fewer}, f"{queue}: {plural(fewer, 'record')} fewer", json=json)
