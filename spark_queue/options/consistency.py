"""Rules between options that several roles share: one may exclude another, or need it.

A rule for one role is in the file of the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_queue.errors import OptionError
from spark_queue.options.declaration import declared_options, option_error, option_name
from spark_queue.options.inputs import LOG, QUEUE, InputOptions
from spark_queue.options.queue_names import check_dead_letter_queue
from spark_queue.options.url import StoreUrl
from spark_queue.options.values import BUCKET, ROLE_NAMES, SINGLE, Role


def check_database(chosen: dict[str, Any]) -> None:
    """Raise `OptionError` unless either `url` or `urls` is set. With `urls`, the `url` is empty."""
    if "urls" in chosen:
        if "url" in chosen:
            raise OptionError("options 'url' and 'urls' exclude each other: set one of them", option="urls")
        chosen["url"] = ""
    if "url" not in chosen:
        raise option_error("url", "is missing: set it, to sqlite:///queues.db for example")


def check_queue(chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` if no queue is named."""
    if "queue" not in chosen:
        raise option_error("queue", "is missing: set it to the name of the queue")


def modes_of(chosen: Mapping[str, Any]) -> set[str]:
    """Return the values of `mode`: of the queue, or of the inputs."""
    return {one.mode for one in chosen.get("inputs", {}).values()} or {chosen.get("mode", QUEUE)}


def check_mode(kind: type[Any], chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` for an option of the other mode. `kind`: the class of the options."""
    modes, declared = modes_of(chosen), dict(declared_options(kind))
    for key in chosen:
        needed = declared[key].mode
        if not needed or needed in modes:
            continue
        if needed == QUEUE:
            why = f"cannot be used with mode={LOG}, which reserves no messages: leave it out"
            raise option_error(option_name(key), why)
        raise option_error(option_name(key), f"needs mode={needed}: set that too")


def check_log_range(chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` if options for the start and the end of a log contradict each other."""
    for end in ("starting", "ending"):
        names = f"{end}_offsets", f"{end}_timestamp"
        if all(name in chosen for name in names):
            first, second = map(option_name, names)
            raise OptionError(f"options {first!r} and {second!r} exclude each other: set one of them", option=second)
    if "starting_offsets_by_timestamp_strategy" in chosen and "starting_timestamp" not in chosen:
        raise option_error("startingOffsetsByTimestampStrategy", "needs 'startingTimestamp': set that too")
    for kind in ("offsets", "timestamp"):
        start, stop = chosen.get(f"starting_{kind}"), chosen.get(f"ending_{kind}")
        if isinstance(start, int) and isinstance(stop, int) and start > stop:
            names = option_name(f"starting_{kind}"), option_name(f"ending_{kind}")
            raise option_error(names[1], f"is {stop} but must not be before {names[0]!r}, which is {start}")


def check_dead_letters(chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` if dead letters would come back to a queue that the options name."""
    inputs: Mapping[str, InputOptions] = chosen.get("inputs") or {}
    for queue in (chosen.get("queue"), *(one.queue for one in inputs.values())):
        if queue is not None:
            check_dead_letter_queue(queue, chosen.get("dead_letter_queue"), "option 'deadLetterQueue'")


def check_no_record_layout(chosen: Mapping[str, Any], roles: Iterable[Role]) -> None:
    """Raise `OptionError` for a layout of records, which these roles do not choose."""
    layout = chosen.get("layout")
    if layout in (SINGLE, BUCKET):
        role_names = " or ".join(ROLE_NAMES[role] for role in roles)
        raise option_error("layout", f"is {layout!r}, which is not for {role_names}")


def move_layout(chosen: dict[str, Any]) -> None:
    """Move the layout of a database into its URL, from which every store is opened.

    Raises `OptionError` if the layout contradicts the URL, or is for several `urls`.
    """
    layout = chosen.get("layout")
    if layout in (None, SINGLE, BUCKET):
        return
    if "urls" in chosen:
        raise option_error("layout", f"is {layout!r}: write ?layout={layout} into each of 'urls'")
    chosen["url"] = StoreUrl.parse(chosen["url"]).with_layout(chosen.pop("layout"))
