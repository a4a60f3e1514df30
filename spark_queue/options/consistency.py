"""Rules between options: one may exclude another, need it, or set its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.inputs import EXPECTED_INPUTS, LOG, QUEUE, InputOptions
from spark_queue.options.masking import masked_repr
from spark_queue.options.queue_names import check_dead_letter_queue
from spark_queue.options.url import StoreUrl
from spark_queue.options.values import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    BUCKET,
    EXACTLY_ONCE,
    FAIL,
    FROM_LATEST,
    ROLE_NAMES,
    SINGLE,
    Role,
)


def resolve_inputs(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Set the defaults that follow from the option `inputs`.

    Raises `OptionError` if another option contradicts it, or needs it.
    """
    inputs: dict[str, InputOptions] | None = chosen.get("inputs")
    if inputs is None:
        if "combine" in chosen:
            raise option_error("combine", "is for several queues: set 'inputs' too")
        if "urls" in chosen and "push" not in roles:
            raise option_error("urls", "is for several queues: set 'inputs' too, or 'url'")
        return
    if "queue" in chosen:
        raise OptionError("options 'queue' and 'inputs' exclude each other: set one of them", option="inputs")
    if "mode" in chosen:
        raise option_error("mode", "is for one queue: set it in each of the 'inputs'")
    urls: Mapping[str, str] = chosen.get("urls", {})
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
    if len(inputs) > 1 and chosen.setdefault("isolate_failures", False):
        why = "messages of several inputs belong together, and are not retried separately"
        raise option_error("isolateFailures", f"is for one queue: {why}; leave it out")
    if len(inputs) > 1 and chosen.get("reserve_ahead"):
        why = "the size of a batch of several inputs is not known before it begins"
        raise option_error("reserveAhead", f"is for one queue: {why}; leave it out")


#: Options for reservations, which a log does not have, and options for logs.
_QUEUE_MODE_OPTIONS = (
    "reserve_ahead", "reserve_timeout", "max_tries", "isolate_failures", "retry_delay", "dead_letter_queue",
    "history", "view",
)  # fmt: skip
_LOG_MODE_OPTIONS = (
    "starting_offsets", "starting_timestamp", "starting_offsets_by_timestamp_strategy", "ending_offsets",
    "ending_timestamp", "retention", "fail_on_data_loss",
)  # fmt: skip


def check_mode(chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` for an option of the other mode."""
    modes = {one.mode for one in chosen.get("inputs", {}).values()} or {chosen.get("mode", QUEUE)}
    for name in chosen:
        if name in _QUEUE_MODE_OPTIONS and QUEUE not in modes:
            why = f"cannot be used with mode={LOG}, which reserves no messages: leave it out"
            raise option_error(option_name(name), why)
        if name in _LOG_MODE_OPTIONS and LOG not in modes:
            raise option_error(option_name(name), f"needs mode={LOG}: set that too")
    if chosen.get("on_unread") == FAIL and QUEUE not in modes:
        why = f"is {FAIL!r}, but mode={LOG} removes no messages: leave it out. A new checkpoint reads them again"
        raise option_error("onUnread", why)


def check_log_range(chosen: Mapping[str, Any], roles: tuple[Role, ...]) -> None:
    """Raise `OptionError` if options for the start and the end of a log contradict each other."""
    for end in ("starting", "ending"):
        names = f"{end}_offsets", f"{end}_timestamp"
        if all(name in chosen for name in names):
            first, second = map(option_name, names)
            raise OptionError(f"options {first!r} and {second!r} exclude each other: set one of them", option=second)
    if "starting_offsets_by_timestamp_strategy" in chosen and "starting_timestamp" not in chosen:
        raise option_error("startingOffsetsByTimestampStrategy", "needs 'startingTimestamp': set that too")
    if roles == ("snapshot",) and chosen.get("starting_offsets") == FROM_LATEST:
        why = f"is {FROM_LATEST!r}, after which a batch read finds nothing: leave it out, or set a position or a time"
        raise option_error("startingOffsets", why)
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


def resolve_delivery(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Set the defaults that follow from the delivery guarantee.

    Raises `OptionError` if another option contradicts it.
    """
    delivery = chosen.setdefault("delivery", EXACTLY_ONCE if "push" in roles else AT_LEAST_ONCE)
    chosen.setdefault("isolate_failures", delivery == AT_LEAST_ONCE)
    if delivery != AT_LEAST_ONCE and chosen.setdefault("reserve_timeout", None) is not None:
        raise option_error(
            "reserveTimeout",
            f"contradicts delivery={delivery}, whose reservations never time out; leave it out, or set "
            f"delivery={AT_LEAST_ONCE}",
        )
    if chosen["isolate_failures"] and delivery == AT_MOST_ONCE:
        why = f"contradicts delivery={AT_MOST_ONCE}, which tries each message once; leave it out"
        raise option_error("isolateFailures", why)
    given = [name for name in ("txn_app_id", "txn_version") if name in chosen]
    if len(given) == 1:
        raise OptionError("options 'txnAppId' and 'txnVersion' go together: set both or neither", option="txnAppId")
    for name in ("txn_app_id", "replay_check"):
        if name in chosen and delivery != EXACTLY_ONCE:
            raise option_error(option_name(name), f"needs delivery={EXACTLY_ONCE}, not {delivery}")


def resolve_layout(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Move the layout of a database into its URL, from which every store is opened.

    Raises `OptionError` if the layout is not for these roles, or contradicts the URL or `urls`.
    """
    layout = chosen.get("layout")
    if layout in (SINGLE, BUCKET) and "push" not in roles:
        role_names = " or ".join(ROLE_NAMES[role] for role in roles)
        raise option_error("layout", f"is {layout!r}, which is not for {role_names}")
    if layout in (None, SINGLE, BUCKET):
        return
    if "urls" in chosen:
        raise option_error("layout", f"is {layout!r}: write ?layout={layout} into each of 'urls'")
    chosen["url"] = StoreUrl.parse(chosen["url"]).with_layout(chosen.pop("layout"))


def option_name(field: str) -> str:
    """Return the name of the option in this field as users write it, in camel case."""
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)


def option_error(name: str, why: str) -> OptionError:
    """Return the error for an option. `why` continues its name."""
    return OptionError(f"option {name!r} {why}", option=name)
