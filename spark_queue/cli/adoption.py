"""Make a collection of another program a queue."""

from __future__ import annotations

from dataclasses import asdict

from spark_queue import admin
from spark_queue.cli.output import confirm, print_result
from spark_queue.cli.params import Command, JsonFlag, QueueArgument, Url, Yes, app
from spark_queue.errors import plural


@app.command(cls=Command)
def adopt(url: Url, queue: QueueArgument, yes: Yes = False, json: JsonFlag = False) -> None:
    """Make a MongoDB collection of another program a queue.

    Shows what it holds, then asks. From then on its documents are messages.
    """
    found = admin.inspect_foreign(url, queue)
    indexes = ", ".join(f"{name} ({key})" for name, key in found.indexes.items())
    number = plural(len(found.indexes), "index", "indexes")
    holds = f"{found.place}: {plural(found.documents, 'document')}, {number}: {indexes}"
    if not (yes or found.is_queue):
        confirm(f"{holds}. Make it a queue? Consumers then reserve, change and remove its documents.")
    if not found.is_queue:
        found = admin.adopt(url, queue)
    done = f"{queue} is a queue already" if found.is_queue else f"{queue} is a queue now"
    print_result({"queue": queue, **asdict(found), "adopted": not found.is_queue}, holds, done, json=json)
