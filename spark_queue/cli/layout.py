"""How messages that are pushed are kept: one by one, or in buckets."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

from spark_queue.cli.late import buckets, operations
from spark_queue.cli.parse import Command, Json, Queue, Url, app, argument, option
from spark_queue.cli.show import plural, show, tell


class How(StrEnum):
    """The layouts of a queue."""

    single = "single"
    bucket = "bucket"


@app.command(cls=Command)
def layout(
    url: Url,
    queue: Queue,
    to: Annotated[How | None, argument("LAYOUT", "Set it: a record for each message, or buckets of many.")] = None,
    bucket_size: Annotated[
        int | None, option("--bucket-size", "N", "Most messages in a bucket (default: 4096).", min=1)
    ] = None,
    compression: Annotated[
        str | None, option("--compression", "lz4|zstd", "How buckets are compressed (default: lz4).")
    ] = None,
    json: Json = False,
) -> None:
    """Show or set how messages of a queue are kept."""
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
        show(f"{queue}: bucket, of up to {plural(found.size, 'message')}, compressed by {found.compression}")
    else:
        show(f"{queue}: single, a record for each message")


@app.command(cls=Command)
def compact(url: Url, queue: Queue, json: Json = False) -> None:
    """Put ready messages together in large buckets.

    Those that lie alone, or in small ones; nobody needs to be stopped.
    """
    fewer = operations.compact(url, queue)
    if json:
        tell({"queue": queue, "fewer": fewer})
    else:
        show(f"{queue}: {plural(fewer, 'record')} fewer")
