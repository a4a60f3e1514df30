"""The inputs of a streaming query that reads several queues together, from the option `inputs`.

    {"order": {"queue": "orders"}, "price": {"queue": "prices", "ns": "market"}}

The name of an input is its *binding*: it is a column of the DataFrame. The order of inputs matters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_queue.errors import near
from spark_queue.options.masking import quoted

#: How the messages of several inputs become rows: each row has one message of every input, or each
#: batch has the messages of one input.
ZIP, ALTS = "zip", "alts"

#: Whether a message goes to one reader and is then removed, or is kept for all readers.
QUEUE, LOG = "queue", "log"

#: The column that is added to those of the inputs.
DELIVERY_HASH = "delivery_hash"

_FORM = 'a JSON object such as {"order": {"queue": "orders"}, "price": {"queue": "prices"}}'


@dataclass(frozen=True, slots=True)
class InputOptions:
    """A queue that is read together with others. `ns` names its database if there are several."""

    queue: str
    ns: str | None = None
    mode: str = QUEUE

    @property
    def facts(self) -> dict[str, str]:
        """The fields that a checkpoint keeps."""
        return {"queue": self.queue} | ({} if self.ns is None else {"ns": self.ns}) | {"mode": self.mode}

    def __str__(self) -> str:
        return self.queue if self.ns is None else f"{self.ns}/{self.queue}"


def parse_inputs(text: str) -> dict[str, InputOptions]:
    """Return the inputs by binding, in the order of the text.

    Raises `ValueError` for other text; the error continues the words "must be".
    """
    try:
        said = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        known = isinstance(error, json.JSONDecodeError)
        raise ValueError(_FORM if known else f"{_FORM}: {error}") from None
    if not isinstance(said, dict) or not said:
        raise ValueError(_FORM)
    found = {binding: _input(binding, facts) for binding, facts in said.items()}
    columns: dict[str, str] = {DELIVERY_HASH: ""}
    for binding in found:
        if (other := columns.setdefault(binding.lower(), binding)) != binding:
            why = f"is the same column as {quoted(other)}" if other else "is a column beside the inputs"
            raise ValueError(f"{_FORM}: the binding {quoted(binding)} {why}")
    return found


def check_apart(inputs: Mapping[str, InputOptions], urls: Mapping[str, str]) -> None:
    """Raise `ValueError` if two bindings name the same queue of the same database."""
    seen: dict[tuple[str, str], str] = {}
    for binding, one in inputs.items():
        other = seen.setdefault((urls.get(one.ns or "", ""), one.queue), binding)
        if other != binding:
            raise ValueError(
                f"{_FORM}: the bindings {quoted(other)} and {quoted(binding)} are both the queue {quoted(str(one))}"
            )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{quoted(max(names, key=names.count))} occurs twice")
    return found


def _input(binding: str, said: Any) -> InputOptions:
    if not binding.strip():
        raise ValueError(f"{_FORM}: a binding has no name")
    if isinstance(said, str):
        said = {"queue": said}
    if not isinstance(said, dict):
        raise ValueError(f"{_FORM}: {quoted(binding)} is {_shown(said)}")
    known = [one.name for one in fields(InputOptions)]
    for name, value in said.items():
        if name not in known:
            raise ValueError(
                f"{_FORM}: {quoted(binding)} has {quoted(name)}"
                f"{near(name, known) or '; known are ' + ', '.join(known)}"
            )
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{_FORM}: {name!r} of {quoted(binding)} is {_shown(value)} but must be a name")
    if "queue" not in said:
        raise ValueError(f"{_FORM}: {quoted(binding)} has no 'queue'")
    if said.get("mode", QUEUE) not in (QUEUE, LOG):
        mode = said["mode"]
        hint = near(mode, (QUEUE, LOG)) or f"; it is {QUEUE} or {LOG}"
        raise ValueError(f"{_FORM}: 'mode' of {quoted(binding)} is {quoted(str(mode))}{hint}")
    return InputOptions(**said)


def _shown(value: Any) -> str:
    """Return a JSON value for an error, without the contents of lists and objects (URLs)."""
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else json.dumps(value)
