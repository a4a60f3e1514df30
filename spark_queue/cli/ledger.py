"""Ledgers of sinks with exactly-once delivery: show, complete and set them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from spark_queue import admin
from spark_queue.cli.output import confirm, echo_err, print_json, print_result, print_table
from spark_queue.cli.params import Command, JsonFlag, Url, Yes, app, argument, group
from spark_queue.errors import plural

ledger = group("Show and repair the ledgers of sinks.")
app.add_typer(ledger, name="ledger")

SinkName = Annotated[str, argument("SINK", "The id of the query, or the txnAppId of the write (see: ledger list).")]


@ledger.command("list", cls=Command)
def ledger_list(url: Url, json: JsonFlag = False) -> None:
    """Show the last batch of each sink, and staged rows."""
    sinks = admin.ledgers(url)
    if json:
        print_json(sinks)
    elif sinks:
        print_table(("sink", "last batch", "staged rows", "state"), map(_sink_row, sinks))
    else:
        echo_err("no sink has a ledger here")


def _sink_row(one: admin.Sink) -> Sequence[object]:
    staged = ", ".join(f"batch {batch}: {rows:,}" for batch, rows in sorted(one.staged.items()))
    if one.unpublished:
        state = f"half published: {one.unpublished:,} left"
    else:
        state = "nothing published" if one.batch is None else "published"
    return one.sink, one.batch, staged, state


@ledger.command("recover", cls=Command)
def ledger_recover(url: Url, sink: SinkName, json: JsonFlag = False) -> None:
    """Publish the rest of the last batch.

    Other staged rows are dropped. Stop the query first.
    """
    done = admin.recover(url, sink)
    text = f"{plural(done.published, 'message')} published, {plural(done.dropped, 'staged row')} dropped"
    if done.kept:
        text += (
            f"; {plural(done.kept, 'staged row')} of a later batch stay, since another database of the sink may have "
            "decided on them: use spark-queue recover with --sink URL for each"
        )
    print_result({"sink": sink, **asdict(done)}, text, json=json)


@ledger.command("forget", cls=Command)
def ledger_forget(url: Url, sink: SinkName, yes: Yes = False, json: JsonFlag = False) -> None:
    """Remove the ledger of a sink that never writes again."""
    if not yes:
        confirm(f"Remove the ledger of {sink}? Its query, started again, may write its last batch twice.")
    batch = admin.forget_ledger(url, sink)
    text = f"ledger of {sink} removed; its last batch was {'none' if batch is None else batch}"
    print_result({"sink": sink, "batch": batch}, text, json=json)


@ledger.command("set", cls=Command)
def ledger_set(
    url: Url,
    sink: SinkName,
    batch: Annotated[int, argument("BATCH", "The last batch that the sink has written.")],
    json: JsonFlag = False,
) -> None:
    """Set the last batch that a sink has written."""
    before = admin.set_ledger(url, sink, batch)
    text = f"sink {sink} set to batch {batch}; before: {'no ledger' if before is None else f'batch {before}'}"
    print_result({"sink": sink, "batch": batch, "before": before}, text, json=json)
