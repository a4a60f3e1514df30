"""Events: create, take, execute and repair them."""

from __future__ import annotations

from collections.abc import Sequence
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_queue import events
from spark_queue.cli.output import (
    LIST_ROWS,
    confirm,
    echo_err,
    exit_with_note,
    print_items,
    print_list,
    print_result,
    shorten,
    shorten_payload,
)
from spark_queue.cli.params import (
    Command,
    JsonFlag,
    QueueArgument,
    Url,
    Yes,
    app,
    argument,
    check_ids,
    flag,
    group,
    number,
    option,
    seconds,
)
from spark_queue.errors import UsageError, plural, unreadable_file

event = group("Create, execute and inspect events.")
app.add_typer(event, name="event")

Conf = Annotated[
    list[Path] | None, option("--conf", "FILE", "A file with executors, heartbeats or settings; repeatable.")
]
EventIds = Annotated[list[str], argument("ID", "Ids of events.", callback=check_ids)]


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
        int | None, number("--max-uris", "Maximum number of URIs per event; more URIs make more events.")
    ] = None,
    priority: Annotated[bool, flag("--priority", help="Take it before events without priority.")] = False,
    conf: Conf = None,
    json: JsonFlag = False,
) -> None:
    """Create an event, or several for many URIs."""
    all_uris = [*(uri or []), *(line.strip() for line in uris or () if line.strip())]
    with _open_events(url, queue, conf) as found:
        uris_per_event = max_uris or found.settings.max_uris
        value = _parse_payload(payload, text)
        if all_uris or uris is not None:  # an empty file of URIs makes no event
            ids = found.create_batch(source, type, value, all_uris, max_uris=uris_per_event, priority=priority)
        else:
            ids = [found.create(source, type, value, priority=priority)]
    print_result(ids, *ids, json=json)
    if not ids:
        echo_err("no URIs: no event was created")


@event.command("take", cls=Command)
def event_take(
    url: Url,
    queue: QueueArgument,
    count: Annotated[int | None, number("--count", "Maximum number of events (default: 10).")] = None,
    conf: Conf = None,
    json: JsonFlag = False,
) -> None:
    """Take new events; they become pending.

    Events with priority come first, then the oldest. Exit code 1 if no event is new.
    """
    with _open_events(url, queue, conf) as found:
        taken = found.take(count)
    print_result([_event_to_json(one) for one in taken], *(one.id for one in taken), json=json)
    if not taken:
        exit_with_note(f"{queue} has no new events")


@event.command("execute", cls=Command)
def event_execute(url: Url, queue: QueueArgument, ids: EventIds, conf: Conf = None, json: JsonFlag = False) -> None:
    """Execute pending events in this process."""
    with _open_events(url, queue, conf) as found:
        statuses = found.execute(ids)
    _print_statuses(statuses, json)


@event.command("status", cls=Command)
def event_status(url: Url, queue: QueueArgument, ids: EventIds, json: JsonFlag = False) -> None:
    """Show the status of events.

    Exit code 1 if one is unknown.
    """
    with _open_events(url, queue, None) as found:
        statuses = found.status(ids)
    _print_statuses(statuses, json)


def _print_statuses(statuses: dict[str, str | None], json: bool) -> None:
    print_result(statuses, *(f"{id} {status or 'unknown'}" for id, status in statuses.items()), json=json)
    if None in statuses.values():
        raise typer.Exit(1)


@event.command("list", cls=Command)
def event_list(
    url: Url,
    queue: QueueArgument,
    status: Annotated[str | None, option("--status", "S", "Only events with this status.")] = None,
    older_than: Annotated[
        Any, seconds("--older-than", "PT1H", "Only events that have had the status of --status for longer.")
    ] = "0s",
    limit: Annotated[int, number("--limit", f"Maximum number of events (default: {LIST_ROWS}).")] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show events and their statuses."""
    with _open_events(url, queue, None) as found:
        if status is None:
            if older_than:
                raise UsageError("--older-than needs --status: it is how long an event has had that status")
            known = sorted(found.all(), key=lambda one: (one.event.created, one.event.id))
        else:
            known = [*found.get(found.find(status, round(older_than * 1000), limit + 1)).values()]
    heads = ("id", "status", "created (UTC)", "type", "source", "URIs", "payload")
    print_list(known, limit, "event", heads, _event_row, json=json, to_value=_state_to_json)
    if not known:
        echo_err(f"{queue} has no events of this kind")


def _state_to_json(one: events.EventState) -> dict[str, Any]:
    return _event_to_json(one.event) | {"status": one.status, "updated": one.updated}


def _event_row(one: events.EventState) -> Sequence[object]:
    made = one.event
    payload = "" if made.payload is None else shorten_payload(made.payload)
    return made.id, one.status, made.created, made.type, made.source, len(made.uris), payload


@event.command("summary", cls=Command)
def event_summary(url: Url, queue: QueueArgument, json: JsonFlag = False) -> None:
    """Show the number of events by status."""
    with _open_events(url, queue, None) as found:
        counts = found.summary()
    print_items(counts, ("status", "events"), counts.items(), json=json)


@event.command("reset", cls=Command)
def event_reset(url: Url, queue: QueueArgument, ids: EventIds, json: JsonFlag = False) -> None:
    """Set the status of events to new."""
    with _open_events(url, queue, None) as found:
        done = found.reset(ids)
    _print_count(done, "reset", json)


@event.command("fail", cls=Command)
def event_fail(
    url: Url,
    queue: QueueArgument,
    ids: EventIds,
    reason: Annotated[str, option("--reason", "TEXT", "The reason, for the log.")] = "",
    json: JsonFlag = False,
) -> None:
    """Set the status of events to failed, unless they have ended."""
    with _open_events(url, queue, None) as found:
        done = found.fail(ids, reason)
    _print_count(done, "failed", json)


@event.command("clear", cls=Command)
def event_clear(
    url: Url, queue: QueueArgument, ids: EventIds, conf: Conf = None, yes: Yes = False, json: JsonFlag = False
) -> None:
    """Delete events of any status; the log records it."""
    if not yes:
        confirm(f"Delete {plural(len(set(ids)), 'event')} of {queue}?")
    with _open_events(url, queue, conf) as found:
        done = found.clear(ids)
    _print_count(done, "deleted", json)


def _print_count(done: int, verb: str, json: bool) -> None:
    print_result({verb: done}, f"{plural(done, 'event')} {verb}", json=json)


@event.command("log", cls=Command)
def event_log(
    url: Url,
    queue: QueueArgument,
    limit: Annotated[
        int, number("--limit", f"Maximum number of records: the oldest (default: {LIST_ROWS}).")
    ] = LIST_ROWS,
    json: JsonFlag = False,
) -> None:
    """Show the log of a queue's events, oldest first."""
    with _open_events(url, queue, None) as found:
        records = found.log.records(limit + 1)
    heads = ("time (UTC)", "what", "from", "to", "events", "by", "error")
    print_list(records, limit, "record", heads, _record_row, json=json)
    if not records:
        echo_err(f"the event log of {queue} is empty")


def _record_row(one: events.AuditRecord) -> Sequence[object]:
    ids = " ".join(one.ids[:3]) + (f" and {len(one.ids) - 3:,} more" if len(one.ids) > 3 else "")
    error = next(iter(one.errors.values()), "").strip()
    last = error.splitlines()[-1] if error else ""
    return one.timestamp, one.message, one.came, one.went, ids, f"{one.user}@{one.host}", shorten(last)


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
    declared = _load_declarations(conf)
    with events.Events(url, queue, settings=declared.settings) as found:
        ids = events.tick(found, declared.heartbeats, id)
    print_result(ids, *ids, json=json)


# --- helpers --------------------------------------------------------------------------------------


def _open_events(url: str, queue: str, conf: Sequence[Path] | None) -> events.Events:
    if not conf:
        return events.Events(url, queue)
    declared = _load_declarations(conf)
    return events.Events(url, queue, executors=declared.executors, settings=declared.settings)


def _load_declarations(conf: Sequence[Path]) -> Any:
    try:
        return events.declared_in(*conf)
    except OSError as error:
        raise unreadable_file(error) from None


def _parse_payload(payload: str | None, text: str | None) -> Any:
    if payload is not None and text is not None:
        raise UsageError("give either --payload or --text, not both")
    if payload is None:
        return text
    try:
        return loads(payload)
    except JSONDecodeError as error:
        raise UsageError(f"--payload is not JSON ({error}); for plain text use --text") from None


def _event_to_json(one: events.Event) -> dict[str, Any]:
    return {"id": one.id, **one.document()}
