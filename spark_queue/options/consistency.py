"""Rules between options: one may exclude another, need it, or set its default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.inputs import LOG, QUEUE, InputOptions, check_distinct_queues
from spark_queue.options.url import StoreUrl
from spark_queue.options.values import AT_LEAST_ONCE, AT_MOST_ONCE, BUCKET, EXACTLY_ONCE, ROLE_NAMES, SINGLE, Role


def resolve_inputs(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Set the defaults that follow from the option `inputs`.

    Raises `OptionError` if another option contradicts it, or needs it.
    """
    inputs: dict[str, InputOptions] | None = chosen.get("inputs")
    if inputs is None:
        if "combine" in chosen:
            raise OptionError("option 'combine' is for several queues: set 'inputs' too", option="combine")
        if "urls" in chosen and "push" not in roles:
            raise OptionError("option 'urls' is for several queues: set 'inputs' too, or 'url'", option="urls")
        return
    if "queue" in chosen:
        raise OptionError("options 'queue' and 'inputs' exclude each other: set one of them", option="inputs")
    if "mode" in chosen:
        raise OptionError("option 'mode' is for one queue: set it in each of the 'inputs'", option="mode")
    urls: Mapping[str, str] = chosen.get("urls", {})
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
    try:
        check_distinct_queues(inputs, urls)
    except ValueError as error:
        raise OptionError(f"option 'inputs' must be {error}", option="inputs") from None
    if len(inputs) > 1 and chosen.setdefault("isolate_failures", False):
        raise OptionError(
            "option 'isolateFailures' is for one queue: messages of several inputs belong together, and are not "
            "retried separately; leave it out",
            option="isolateFailures",
        )
    if len(inputs) > 1 and "reserve_ahead" in chosen and chosen["reserve_ahead"]:
        raise OptionError(
            "option 'reserveAhead' is for one queue: the size of a batch of several inputs is not known before it "
            "begins; leave it out",
            option="reserveAhead",
        )


#: Options for reservations, which a log does not have, and options for logs.
_QUEUE_MODE_OPTIONS = (
    "reserve_ahead", "reserve_timeout", "max_tries", "isolate_failures", "retry_delay", "dead_letter_queue",
    "history", "view",
)  # fmt: skip
_LOG_MODE_OPTIONS = ("starting_offsets", "retention", "fail_on_data_loss")


def check_mode(options: Iterable[Field[Any]], chosen: Mapping[str, Any]) -> None:
    """Raise `OptionError` for an option of the other mode."""
    modes = {one.mode for one in (chosen.get("inputs") or {}).values()} or {chosen.get("mode", QUEUE)}
    for option in options:
        shown = option_name(option)
        if option.name in chosen and option.name in _QUEUE_MODE_OPTIONS and QUEUE not in modes:
            why = f"cannot be used with mode={LOG}, which reserves no messages: leave it out"
            raise OptionError(f"option {shown!r} {why}", option=shown)
        if option.name in chosen and option.name in _LOG_MODE_OPTIONS and LOG not in modes:
            raise OptionError(f"option {shown!r} needs mode={LOG}: set that too", option=shown)


def resolve_delivery(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Set the defaults that follow from the delivery guarantee.

    Raises `OptionError` if another option contradicts it.
    """
    delivery = chosen.setdefault("delivery", EXACTLY_ONCE if "push" in roles else AT_LEAST_ONCE)
    chosen.setdefault("isolate_failures", delivery == AT_LEAST_ONCE)
    if delivery != AT_LEAST_ONCE and chosen.setdefault("reserve_timeout", None) is not None:
        raise OptionError(
            f"option 'reserveTimeout' contradicts delivery={delivery}, whose reservations never time out; "
            f"leave it out, or set delivery={AT_LEAST_ONCE}",
            option="reserveTimeout",
        )
    if chosen["isolate_failures"] and delivery == AT_MOST_ONCE:
        raise OptionError(
            "option 'isolateFailures' contradicts delivery=at-most-once, which tries each message once; leave it out",
            option="isolateFailures",
        )
    given = [name for name in ("txn_app_id", "txn_version") if name in chosen]
    if len(given) == 1:
        raise OptionError("options 'txnAppId' and 'txnVersion' go together: set both or neither", option="txnAppId")
    for name, shown in (("txn_app_id", "txnAppId"), ("replay_check", "replayCheck")):
        if name in chosen and delivery != EXACTLY_ONCE:
            raise OptionError(f"option {shown!r} needs delivery={EXACTLY_ONCE}, not {delivery}", option=shown)


def resolve_layout(chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
    """Move the layout of a database into its URL, from which every store is opened.

    Raises `OptionError` if the layout is not for these roles, or contradicts the URL or `urls`.
    """
    layout = chosen.get("layout")
    if layout in (SINGLE, BUCKET) and "push" not in roles:
        role_names = " or ".join(ROLE_NAMES[role] for role in roles)
        raise OptionError(f"option 'layout' is {layout!r}, which is not for {role_names}", option="layout")
    if layout in (None, SINGLE, BUCKET):
        return
    if "urls" in chosen:
        raise OptionError(
            f"option 'layout' is {layout!r}: write ?layout={layout} into each of 'urls'", option="layout"
        )
    chosen["url"] = StoreUrl.parse(chosen["url"]).with_layout(chosen.pop("layout"))


def option_name(option: Field[Any]) -> str:
    """Return the name of the option in this field as users write it, in camel case."""
    head, *rest = option.name.split("_")
    return head + "".join(part.capitalize() for part in rest)
