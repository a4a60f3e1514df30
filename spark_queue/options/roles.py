"""The roles of a DataFrame with `format("queue")`: strings in, the options of one role out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, overload

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.options.declaration import Option, build, declared_options, option_error, option_name
from spark_queue.options.masking import HIDDEN, mask_if_url, masked_repr
from spark_queue.options.other_names import other_name_hint
from spark_queue.options.parsers import one_of
from spark_queue.options.push import PushOptions
from spark_queue.options.settle import SettleOptions
from spark_queue.options.snapshot import SnapshotOptions
from spark_queue.options.stream import StreamOptions
from spark_queue.options.values import READ_ROLES, ROLE_NAMES, SPARK_OPTIONS, Role

ReadOptions = StreamOptions | SnapshotOptions
WriteOptions = PushOptions | SettleOptions
AnyOptions = ReadOptions | WriteOptions

#: For functions that return the options of the role of their argument.
OptionsType = TypeVar("OptionsType", bound=AnyOptions)
ReadType = TypeVar("ReadType", bound=ReadOptions)

OPTION_CLASSES: dict[Role, type[AnyOptions]] = {
    "stream": StreamOptions,
    "snapshot": SnapshotOptions,
    "push": PushOptions,
    "settle": SettleOptions,
}


@overload
def parse_options(raw: Mapping[str, str], role: Literal["stream"]) -> StreamOptions: ...
@overload
def parse_options(raw: Mapping[str, str], role: Literal["snapshot"]) -> SnapshotOptions: ...
@overload
def parse_options(raw: Mapping[str, str], role: Literal["push"]) -> PushOptions: ...
@overload
def parse_options(raw: Mapping[str, str], role: Literal["settle"]) -> SettleOptions: ...
def parse_options(raw: Mapping[str, str], role: Role) -> AnyOptions:
    """Return the options of a DataFrame that has this role.

    An option's letter case is ignored. Raises `OptionError` for the first option that is unknown,
    invalid, missing, or contradicts another one.
    """
    return _resolved(role, _parse_values(raw, (role,)), (role,))


def parse_read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read of which it is not known yet whether it is a stream.

    They are those of a batch read if only that has them all. Raises `OptionError` as
    `parse_options`, unless an option is for one of the roles: it is checked when the role is known.
    """
    chosen = _parse_values(raw, READ_ROLES)
    stream, snapshot = declared()["stream"], declared()["snapshot"]
    role: Role = "stream" if chosen.keys() <= stream.keys() or chosen.keys() - snapshot.keys() else "snapshot"
    known = {key: value for key, value in chosen.items() if key in declared()[role]}
    options = _resolved(role, known, READ_ROLES)
    assert isinstance(options, StreamOptions | SnapshotOptions)
    return options


def role_of_write(raw: Mapping[str, str]) -> Literal["push", "settle"]:
    """Return whether a write pushes or settles, by its option `operation`.

    Raises `OptionError` if the option has another value.
    """
    for key, text in raw.items():
        if key.lower() == "operation":
            try:
                return "settle" if one_of("push", "settle")(text) == "settle" else "push"
            except ValueError as error:
                raise OptionError(
                    f"option 'operation' is {masked_repr(text)} but must be {error}", option=key
                ) from None
    return "push"


@cache
def declared() -> dict[Role, dict[str, Option]]:
    """Return the options of each role, by name in snake case."""
    return {role: dict(declared_options(kind)) for role, kind in OPTION_CLASSES.items()}


def _resolved(role: Role, chosen: dict[str, Any], roles: tuple[Role, ...]) -> AnyOptions:
    kind = OPTION_CLASSES[role]
    kind.resolve(chosen, roles)
    return build(kind, chosen)


def _parse_values(raw: Mapping[str, str], roles: tuple[Role, ...]) -> dict[str, Any]:
    """Return the values of the given options, by name in snake case.

    Raises `OptionError` for an option that is unknown, invalid, or not for these roles.
    """
    chosen: dict[str, Any] = {}
    for given, text in raw.items():
        if given.lower() in SPARK_OPTIONS:
            continue
        key = _key_of(given)
        name = option_name(key)
        option = next((declared()[role][key] for role in roles if key in declared()[role]), None)
        if option is None:
            role_names = " or ".join(ROLE_NAMES[role] for role in roles)
            raise option_error(name, f"is not for {role_names}: leave it out")
        try:
            chosen[key] = option.parse(str(text))
        except ValueError as error:
            shown = HIDDEN if option.secret else masked_repr(str(text))
            raise option_error(name, f"is {shown} but must be {error}") from None
    return chosen


def _key_of(given: str) -> str:
    """Return the option of this name, whatever its letter case, in snake case.

    Raises `OptionError` for an unknown one.
    """
    keys = {option_name(key): key for options in declared().values() for key in options}
    for name, key in keys.items():
        if name.lower() == given.lower():
            return key
    hint = other_name_hint(given) or did_you_mean(given, keys) or f"; known are {', '.join(sorted(keys))}"
    raise OptionError(f"unknown option {masked_repr(given)}{hint}", option=mask_if_url(given))
