"""Which server runs a step: several servers that share a graph run each step once.

The run of a step is a note in the namespace of its source. It names the process that runs the step,
its state and its last error. The process renews it every few seconds. While it is alive, others do
not start the step; when it has died, one of them does, as with a consumer (`owner.py`).

The note only saves starts that would fail. What keeps two processes from reading the same messages
is the owner note of the consumer.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_queue.runner.notes import check_version, note_value
from spark_queue.stores.base import Store
from spark_queue.stores.services.owner import Owner
from spark_queue.stores.types import Note

RUN_VERSION = 1
RUN_PREFIX = "exchange-run/"


@dataclass(frozen=True, slots=True)
class StepRun:
    """What the note of a run says. `owner`: `None` if its process has given the step up."""

    owner: Owner | None
    state: str
    error: str | None = None
    restarts: int = 0


class StepRuns:
    """The runs of this process. Its methods may block."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._token = uuid.uuid4().hex

    def take(self, ns: str, name: str, state: str, error: str | None = None, restarts: int = 0) -> bool:
        """Take or renew the run of a step. Return whether this process has it now.

        Raises `StoreError`.
        """
        store, key = self._stores[ns], RUN_PREFIX + name
        note, now = store.note(key), store.now()
        owner = _from_note(name, note).owner if note else None
        if owner is not None and owner.token != self._token and owner.is_alive(now):
            return False
        made = StepRun(Owner.current(self._token, now), state, error, restarts)
        return store.set_note(key, _note_value(made), note.version if note else 0)

    def give_up(self, ns: str, name: str, state: str, error: str | None = None, restarts: int = 0) -> None:
        """Give up the run of a step, if this process has it. Its state and its error stay."""

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            if value is None or (value["owner"] or {}).get("token") != self._token:
                return value
            return _note_value(StepRun(None, state, error, restarts))

        self._stores[ns].change_note(RUN_PREFIX + name, change)

    def remove(self, ns: str, name: str) -> None:
        """Remove the note of a step that was removed."""
        self._stores[ns].change_note(RUN_PREFIX + name, lambda _: None)


def load_run(store: Store, name: str) -> StepRun | None:
    """Return the run of a step whose source is in this store, `None` if it never ran.

    Raises `StoreError`.
    """
    note = store.note(RUN_PREFIX + name)
    return None if note is None else _from_note(name, note)


def _note_value(run: StepRun) -> dict[str, Any]:
    return note_value(RUN_VERSION, asdict(run))


def _from_note(name: str, note: Note) -> StepRun:
    value = note.value
    check_version(value, (RUN_VERSION,), f"facts about the run of exchange {name!r}")
    return StepRun(value["owner"] and Owner(**value["owner"]), value["state"], value["error"], value["restarts"])
