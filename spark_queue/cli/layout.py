"""The layout of a queue: one record per message, or buckets."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

from spark_queue.cli.lazy import buckets, operations
from spark_queue.cli.output import show, tell
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Url, app, argument, option, queue_names
from spark_queue.errors import plural


class How(StrEnum):
    """The layouts of a queue."""

    single = "single"
    bucket = "bucket"


@app.command(cls=Command)
def layout(
    url: Url,
    queue: QueueArgument,
    to: Annotated[
        How | None,
        argument("LAYOUT", "The new layout: one record per message, or buckets of many (default: show it)."),
    ] = None,
    bucket_size: Annotated[
        int | None, option("--bucket-size", "N", "Maximum number of messages in a bucket (default: 4096).", min=1)
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
        usual = buckets.Buckets()
        wanted = buckets.Buckets(bucket_size or usual.size, compression or usual.compression)
        found = wanted if to is How.bucket else None
        operations.set_layout(url, queue, found)
    else:
        found = operations.layout(url, queue)
    if json:
        tell({"queue": queue, "layout": "bucket" if found else "single"} | (asdict(found) if found else {}))
    elif found:
        show(f"{queue}: bucket, up to {plural(found.size, 'message')} each, compressed with {found.compression}")
    else:
        show(f"{queue}: single, one record per message")


@app.command(cls=Command)
def compact(
    url: Url,
    queue: Annotated[
        str | None, argument("QUEUE", "The name of the queue (default: the SQLite file).", autocompletion=queue_names)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Merge messages into buckets, or shrink a SQLite file.

    With a queue: merges ready messages that are single or in small buckets. Without: shrinks the
    file to its content; writes wait meanwhile. Producers and consumers can go on.
    """
    if queue is None:
        less = operations.shrink(url)
        if json:
            tell({"bytes": less})
        else:
            show(f"the file is {less:,} bytes smaller")
        return
    fewer = operations.compact(url, queue)
    if json:
        tell({"queue": queue, "fewer": fewer})
    else:
        show(f"{queue}: {plural(fewer, 'record')} fewer")
