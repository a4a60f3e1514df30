"""Count what one client asks of its database: transactions, scripts, commands.

The databases and their drivers count: SQLite calls back for each statement, Redis shows each
command to a monitor, and MongoDB's driver reports each command that it sends. A client writes its
counters now and then, in a thread: that is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from spark_queue.options.masking import scheme_of
from spark_queue.stores.base import Store

#: The calls in a `with` block: a statement, or the name of a command and what it is about.
Calls = AbstractContextManager[list[str]]


def count_calls(store: Store) -> Calls | None:
    """Return the transactions, scripts or commands of a store; `None` if its kind is unknown."""
    counter = _COUNTERS.get(scheme_of(store.url))
    return None if counter is None else counter(store)


@contextmanager
def _transactions(store: Any) -> Iterator[list[str]]:
    """Yield the transactions of a SQLite store: the first statement of each."""
    calls: list[str] = []
    begun: list[str] = []

    def trace(statement: str) -> None:
        if statement.startswith("BEGIN"):
            begun.append(statement)
        elif begun:
            begun.clear()
            calls.append(statement)

    with store._connection.use() as db:
        db.set_trace_callback(trace)
    try:
        yield calls
    finally:
        with store._connection.use() as db:
            db.set_trace_callback(None)
        calls[:] = [one for one in calls if "INTO statistics" not in one]


@contextmanager
def _scripts(store: Any) -> Iterator[list[str]]:
    """Yield the scripts that clients of a Redis server call, each with its keys."""
    import redis

    calls: list[str] = []
    with redis.Redis.from_url(store._address.url, protocol=2) as client, client.monitor() as monitor:
        yield calls
        mark = uuid.uuid4().hex
        with redis.Redis.from_url(store._address.url, protocol=2) as other:
            other.echo(mark)
        while mark not in (one := monitor.next_command())["command"]:
            if one["client_type"] != "lua" and one["command"].upper().startswith("EVAL"):
                calls.append(one["command"])


@contextmanager
def _commands(store: Any) -> Iterator[list[str]]:
    """Yield the commands that a MongoDB store sends, each with its collection."""
    from pymongo.monitoring import CommandListener

    from spark_queue.stores.mongodb.store import DEFAULTS

    calls: list[str] = []
    counting: list[bool] = []

    class Listener(CommandListener):
        def started(self, event: Any) -> None:
            one = f"{event.command_name} {event.command.get(event.command_name)}"
            if counting and one != "update keuss_stats":
                calls.append(one)

        def succeeded(self, event: Any) -> None:
            pass

        def failed(self, event: Any) -> None:
            pass

    DEFAULTS["event_listeners"] = [Listener()]
    store.close()  # it opens again, with the listener
    try:
        store.now()
        counting.append(True)
        yield calls
    finally:
        counting.clear()
        del DEFAULTS["event_listeners"]
        store.close()


_COUNTERS: dict[str, Callable[[Any], Calls]] = {
    "sqlite": _transactions,
    "redis": _scripts,
    "mongodb": _commands,
}
