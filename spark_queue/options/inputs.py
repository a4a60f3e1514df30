"""The inputs of a streaming query that reads several queues together, from the option `inputs`.

    {"order": {"queue": "orders"}, "price": {"queue": "prices", "ns": "market"}}

The name of an input is its *binding*: it is a column of the DataFrame. The order of inputs matters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.declaration import option_error
from spark_queue.options.masking import masked_repr

#: How the messages of several inputs become rows: each row has one message of every input, or each
#: batch has the messages of one input.
ZIP, ALTS = "zip", "alts"

#: Whether a message goes to one reader and is then removed, or is kept for all readers.
QUEUE, LOG = "queue", "log"

#: The column that is added to those of the inputs.
DELIVERY_HASH = "delivery_hash"

#: The form of the option, as it continues "must be".
EXPECTED_INPUTS = 'a JSON object such as {"order": {"queue": "orders"}, "price": {"queue": "prices"}}'


@dataclass(frozen=True, slots=True)
class InputOptions:
    """A queue that is read together with others. `ns` names its database if there are several."""

    queue: str
    ns: str | None = None
    mode: str = QUEUE

    @property
    def checkpoint_fields(self) -> dict[str, str]:
        """The fields that a checkpoint keeps."""
        return {"queue": self.queue} | ({} if self.ns is None else {"ns": self.ns}) | {"mode": self.mode}

    def __str__(self) -> str:
        return self.queue if self.ns is None else f"{self.ns}/{self.queue}"


def parse_inputs(text: str) -> dict[str, InputOptions]:
    """Return the inputs by binding, in the order of the text.

    Raises `ValueError` for other text; the error continues the words "must be".
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
        found = _parse_object(parsed) if isinstance(parsed, dict) else {}
    except json.JSONDecodeError:
        found = {}
    except ValueError as error:
        raise ValueError(f"{EXPECTED_INPUTS}: {error}") from None
    if not found:
        raise ValueError(EXPECTED_INPUTS)
    return found


def check_inputs(inputs: Mapping[str, InputOptions], urls: Mapping[str, str]) -> None:
    """Raise `OptionError` if an input has no database in `urls`, or two are the same queue."""
    bindings: dict[tuple[str, str], str] = {}  # by URL and queue
    for binding, one in inputs.items():
        if one.ns is None and urls:
            raise OptionError(
                f"option 'inputs': {binding!r} has no 'ns', which names its database in 'urls'", option="inputs"
            )
        if one.ns is not None and one.ns not in urls:
            hint = did_you_mean(one.ns, urls) or (f"; it has {', '.join(urls)}" if urls else "; set it")
            raise OptionError(
                f"option 'inputs': {binding!r} has the ns {one.ns!r}, which option 'urls' does not name{hint}",
                option="inputs",
            )
        other = bindings.setdefault((urls.get(one.ns or "", ""), one.queue), binding)
        if other != binding:
            same = f"{masked_repr(other)} and {masked_repr(binding)} are both the queue {masked_repr(str(one))}"
            raise option_error("inputs", f"must be {EXPECTED_INPUTS}: the bindings {same}")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{masked_repr(max(names, key=names.count))} occurs twice")
    return found


def _parse_object(parsed: dict[str, Any]) -> dict[str, InputOptions]:
    found = {binding: _parse_input(binding, facts) for binding, facts in parsed.items()}
    columns: dict[str, str] = {DELIVERY_HASH: ""}
    for binding in found:
        if (other := columns.setdefault(binding.lower(), binding)) != binding:
            why = f"is the same column as {masked_repr(other)}" if other else "is a column beside the inputs"
            raise ValueError(f"the binding {masked_repr(binding)} {why}")
    return found


def _parse_input(binding: str, declared: Any) -> InputOptions:
    if not binding.strip():
        raise ValueError("a binding has no name")
    shown = masked_repr(binding)
    if isinstance(declared, str):
        declared = {"queue": declared}
    if not isinstance(declared, dict):
        raise ValueError(f"{shown} is {_describe(declared)}")
    known = [one.name for one in fields(InputOptions)]
    for name, value in declared.items():
        if name not in known:
            hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise ValueError(f"{shown} has {masked_repr(name)}{hint}")
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name!r} of {shown} is {_describe(value)} but must be a name")
    if "queue" not in declared:
        raise ValueError(f"{shown} has no 'queue'")
    mode = declared.get("mode", QUEUE)
    if mode not in (QUEUE, LOG):
        hint = did_you_mean(mode, (QUEUE, LOG)) or f"; it is {QUEUE} or {LOG}"
        raise ValueError(f"'mode' of {shown} is {masked_repr(mode)}{hint}")
    return InputOptions(**declared)


def _describe(value: Any) -> str:
    """Return a JSON value for an error, without the contents of lists and objects (URLs)."""
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else json.dumps(value)
