"""Events: create, take, execute and repair them."""

from __future__ import annotations

from collections.abc import Sequence
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_queue.cli.lazy import events
from spark_queue.cli.output import LIST_ROWS, confirm, cut, dumped, listed, say, show, table, tell
from spark_queue.cli.params import (
    Command,
    JsonFlag,
    QueueArgument,
    Url,
    Yes,
    app,
    argument,
    flag,
    group,
    of_text,
    option,
    seconds,
)
from spark_queue.errors import UsageError, plural, unreadable

if TYPE_CHECKING:
    from spark_queue.events import AuditRecord, Events, Known
    from spark_queue.events.event import Event

event = group("Create, execute and inspect events.")
app.add_typer(event, name="event")

Conf = Annotated[
    list[Path] | None,
    option("--conf", "FILE", "A file with executors, heartbeats or settings; repeatable."),
]
EventIds = Annotated[list[str], argument("ID", "Ids of events.", callback=of_text)]


@event.command("create", cls=Command)
def event_create(
    url: Url,
    queue: QueueArgument,
    source: Annotated[str, argument("SOURCE", "The source of the event, usually a URI.")],
    type: Annotated[str, argument("TYPE", "The type of the event, usually a URI.")],
    uri: Annotated[list[str] | None, option("--uri", "URI", "A URI that the event is about; repeatable.")] = None,
    uris: Annotated[
        typer.FileText | None, option("--uris", "FILE", "A file of such URIs, one per line; - is stdin.")
    ] = None,
    payload: Annotated[str | None, option("--payload", "JSON", "The payload in JSON.")] = None,
    text: Annotated[str | None, option("--text", "TEXT", "The payload as text or XML.")] = None,
    max_uris: Annotated[
        int | None, option("--max-uris", "N", "Maximum number of URIs per event; more URIs make more events.", min=1)
    ] = None,
    priority: Annotated[bool, flag("--priority", help="Take it before events without priority.")] = False,
    conf: Conf = None,
    json: JsonFlag = False,
) -> None:
    """Create an event, or several for many URIs."""
    about = [*(uri or []), *(line.strip() for line in uris or () if line.strip())]
    with _opened(url, queue, conf) as found:
        most = max_uris or found.settings.max_uris
        value = _value(payload, text)
        if about or uris is not None:  # an empty file of URIs makes no event
            ids = found.create_batch(source, type, value, about, max_uris=most, priority=priority)
        else:
            ids = [found.create(source, type, value, priority=priority)]
    if json:
        tell(ids)
    else:
        for id in ids:
            show(id)
    if not ids:
        say("no URIs: no event was created")


@event.command("take", cls=Command)
def event_take(
    url: Url,
    queue: QueueArgument,
    count: Annotated[int | None, option("--count", "N", "Maximum number of events (default: 10).", min=1)] = None,
    conf: Conf = None,
    json: JsonFlag = False,
) -> None:
    """Take new events; they become pending.

    Events with priority come first, then the oldest. Exit code 1 if no event is new.
    """
    with _opened(url, queue, conf) as found:
        taken = found.take(count)
    if json:
        tell([_whole(one) for one in taken])
    else:
        for one in taken:
            show(one.id)
    if not taken:
        say(f"{queue} has no new events")
        raise typer.Exit(1)


@event.command("execute", cls=Command)
def event_execute(url: Url, queue: QueueArgument, ids: EventIds, conf: Conf = None, json: JsonFlag = False) -> None:
    """Execute pending events in this process."""
    with _opened(url, queue, conf) as found:
        told = found.execute(ids)
    _tell_statuses(told, json)


@event.command("status", cls=Command)
def event_status(url: Url, queue: QueueArgument, ids: EventIds, json: JsonFlag = False) -> None:
    """Show the status of events.

    Exit code 1 if one is unknown.
    """
    with _opened(url, queue, None) as found:
        told = found.status(ids)
    _tell_statuses(told, json)


def _tell_statuses(told: dict[str, str | None], json: bool) -> None:
    if json:
        tell(told)
    else:
        for id, status in told.items():
            show(f"{id} {status or 'unknown'}")
    if None in told.values():
        raise typer.Exit(1)


@event.command("list", cls=Command)
def event_list(
    url: Url,
    queue: QueueArgument,
    status: Annotated[str | None, option("--status", "S", "Only events with this status.")] = None,
    older_than: Annotated[
        Any,
        option(
            "--older-than", "PT1H", "Only events that have had the status of --status for longer.", parser=seconds
        ),
    ] = "0s",
    limit: Annotated[
        int, option("--limit", "N", f"Maximum number of events (default: {LIST_ROWS}).", min=1)
    ] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show events and their statuses."""
    with _opened(url, queue, None) as found:
        if status is None:
            if older_than:
                raise UsageError("--older-than needs --status: it is how long an event has had that status")
            known = sorted(found.all(), key=lambda one: (one.event.created, one.event.id))
        else:
            known = [*found.get(found.find(status, round(older_than * 1000), limit + 1)).values()]
    heads = ("id", "status", "created (UTC)", "type", "source", "URIs", "payload")
    listed(known, limit, "event", heads, _row, json=json, plain=_told)
    if not known:
        say(f"{queue} has no events of this kind")


def _told(one: Known) -> dict[str, Any]:
    return _whole(one.event) | {"status": one.status, "updated": one.updated}


def _row(one: Known) -> Sequence[object]:
    made = one.event
    payload = "" if made.payload is None else made.payload if isinstance(made.payload, str) else dumped(made.payload)
    return made.id, one.status, made.created, made.type, made.source, len(made.uris), cut(payload)


@event.command("summary", cls=Command)
def event_summary(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Show the number of events by status."""
    with _opened(url, queue, None) as found:
        told = found.summary()
    if json:
        tell(told)
    else:
        table(("status", "events"), told.items())


@event.command("reset", cls=Command)
def event_reset(url: Url, queue: QueueArgument, ids: EventIds, json: JsonFlag = False) -> None:
    """Set the status of events to new."""
    with _opened(url, queue, None) as found:
        done = found.reset(ids)
    _tell_done(done, "reset", json)


@event.command("fail", cls=Command)
def event_fail(
    url: Url,
    queue: QueueArgument,
    ids: EventIds,
    reason: Annotated[str, option("--reason", "TEXT", "The reason, for the log.")] = "",
    json: JsonFlag = False,
) -> None:
    """Set the status of events to failed, unless they have ended."""
    with _opened(url, queue, None) as found:
        done = found.fail(ids, reason)
    _tell_done(done, "failed", json)


@event.command("clear", cls=Command)
def event_clear(
    url: Url, queue: QueueArgument, ids: EventIds, conf: Conf = None, yes: Yes = False, json: JsonFlag = False
) -> None:
    """Delete events of any status; the log records it."""
    if not yes:
        confirm(f"Delete {plural(len(set(ids)), 'event')} of {queue}?")
    with _opened(url, queue, conf) as found:
        done = found.clear(ids)
    _tell_done(done, "deleted", json)


def _tell_done(done: int, what: str, json: bool) -> None:
    if json:
        tell({what: done})
    else:
        show(f"{plural(done, 'event')} {what}")


@event.command("log", cls=Command)
def event_log(
    url: Url,
    queue: QueueArgument,
    limit: Annotated[
        int, option("--limit", "N", f"Maximum number of records: the oldest (default: {LIST_ROWS}).", min=1)
    ] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show the log of a queue's events, oldest first."""
    with _opened(url, queue, None) as found:
        records = found.log.records(limit + 1)
    heads = ("time (UTC)", "what", "from", "to", "events", "by", "error")
    listed(records, limit, "record", heads, _record, json=json)
    if not records:
        say(f"the event log of {queue} is empty")


def _record(one: AuditRecord) -> Sequence[object]:
    ids = " ".join(one.ids[:3]) + (f" and {len(one.ids) - 3:,} more" if len(one.ids) > 3 else "")
    error = next(iter(one.errors.values()), "").strip()
    last = error.splitlines()[-1] if error else ""
    return one.timestamp, one.message, one.came, one.went, ids, f"{one.user}@{one.host}", cut(last)


@event.command("heartbeat", cls=Command)
def event_heartbeat(
    url: Url,
    queue: QueueArgument,
    id: Annotated[str, argument("ID", "The id of the heartbeat.")],
    conf: Conf = None,
    json: JsonFlag = False,
) -> None:
    """Create the events of a heartbeat once.

    Call it from a scheduler such as cron.
    """
    if not conf:
        raise UsageError("--conf is missing: name the file that declares the heartbeat")
    declared = _declared(conf)
    with events.Events(url, queue, settings=declared.settings) as found:
        ids = events.tick(found, declared.heartbeats, id)
    if json:
        tell(ids)
    else:
        for one in ids:
            show(one)


# --- helpers --------------------------------------------------------------------------------------------------------


def _opened(url: str, queue: str, conf: Sequence[Path] | None) -> Events:
    if not conf:
        return events.Events(url, queue)
    declared = _declared(conf)
    return events.Events(url, queue, executors=declared.executors, settings=declared.settings)


def _declared(conf: Sequence[Path]) -> Any:
    try:
        return events.declared_in(*conf)
    except OSError as error:
        raise unreadable(error) from None


def _value(payload: str | None, text: str | None) -> Any:
    if payload is not None and text is not None:
        raise UsageError("give either --payload or --text, not both")
    if payload is None:
        return text
    try:
        return loads(payload)
    except JSONDecodeError as error:
        raise UsageError(f"--payload is not JSON ({error}); for plain text use --text") from None


def _whole(one: Event) -> dict[str, Any]:
    return {"id": one.id, **one.document()}
