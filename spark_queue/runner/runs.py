"""Which server runs a step: several servers that share a graph run each step once.

The run of a step is a note in the namespace of its source. It names the process that runs the step,
its state and its last error. The process renews it every few seconds. While it is alive, others do
not start the step; when it has died, one of them does, as with a consumer (`owner.py`).

The note only saves starts that would fail. What keeps two processes from reading the same messages
is the owner note of the consumer.

The note also says whether the step is on probation, and how often Spark's process died then: see
`probation.py`. And it names the folder of the checkpoint: a process that has another folder cannot
go on where the last one stopped.
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

RUN_VERSION, READ_RUN_VERSIONS = 2, (1, 2)
RUN_PREFIX = "exchange-run/"


@dataclass(frozen=True, slots=True)
class StepRun:
    """What the note of a run says. `owner`: `None` if its process has given the step up.

    `alone`: whether it is on probation, and no other suspect runs beside it. `deaths`: how often
    its process died meanwhile. Version 1 had neither. `folder`: the id of the folder with its
    checkpoint, `None` if an earlier version ran it last.
    """

    owner: Owner | None
    state: str
    error: str | None = None
    restarts: int = 0
    alone: bool = False
    deaths: int = 0
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class LeftRun:
    """What the last process of a step has left. `died`: whether it has not given the step up."""

    died: bool
    alone: bool
    deaths: int


class StepRuns:
    """The runs of this process. Its methods may block."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._token = uuid.uuid4().hex

    def claim(
        self,
        ns: str,
        name: str,
        state: str,
        error: str | None = None,
        restarts: int = 0,
        *,
        alone: bool | None = None,
        deaths: int | None = None,
        folder: str | None = None,
    ) -> bool:
        """Claim or renew the run of a step. Return whether this process has it now.

        `alone`, `deaths`, `folder`: as the note has them if `None`. Raises `StoreError`.
        """
        store, key = self._stores[ns], RUN_PREFIX + name
        note, now = store.note(key), store.now()
        before = _from_note(name, note) if note else None
        owner = before.owner if before else None
        if owner is not None and owner.token != self._token and owner.is_alive(now):
            return False
        folder = folder or (before.folder if before else None)
        made = StepRun(
            Owner.current(self._token, now), state, error, restarts, *_probation(before, alone, deaths), folder
        )
        return store.set_note(key, _note_value(made), note.version if note else 0)

    def left(self, ns: str, name: str) -> LeftRun | None:
        """Return what the last process of a step has left; `None` if another process runs it.

        Raises `StoreError`.
        """
        store = self._stores[ns]
        run = load_run(store, name)
        if run is None:
            return LeftRun(died=False, alone=False, deaths=0)
        if run.owner is not None and run.owner.token != self._token and run.owner.is_alive(store.now()):
            return None
        return LeftRun(run.owner is not None and run.owner.token != self._token, run.alone, run.deaths)

    def give_up(
        self,
        ns: str,
        name: str,
        state: str,
        error: str | None = None,
        restarts: int = 0,
        *,
        alone: bool | None = None,
        deaths: int | None = None,
    ) -> None:
        """Give up the run of a step, if this process has it. Its state and its error stay.

        `alone`, `deaths`: as the note has them if `None`.
        """

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            if value is None or (value["owner"] or {}).get("token") != self._token:
                return value
            before = _from_value(name, value)
            return _note_value(
                StepRun(None, state, error, restarts, *_probation(before, alone, deaths), before.folder)
            )

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


def _probation(before: StepRun | None, alone: bool | None, deaths: int | None) -> tuple[bool, int]:
    """Return `alone` and `deaths` of a run, by default those that it had before."""
    had = (before.alone, before.deaths) if before else (False, 0)
    return had[0] if alone is None else alone, had[1] if deaths is None else deaths


def _from_note(name: str, note: Note) -> StepRun:
    return _from_value(name, note.value)


def _from_value(name: str, value: Mapping[str, Any]) -> StepRun:
    check_version(value, READ_RUN_VERSIONS, f"facts about the run of exchange {name!r}")
    owner = value["owner"] and Owner(**value["owner"])
    alone, deaths = bool(value.get("alone")), int(value.get("deaths", 0))
    return StepRun(owner, value["state"], value["error"], value["restarts"], alone, deaths, value.get("folder"))
