"""How options are declared: each is a field of a role's class, or of a part that roles share.

    max_tries: int | None = option(count, "Number of failed tries after which …")

The name of the option is that of the field, in camel case. The roles that have it, its row in
`docs/options.md` and its parser follow from the declaration, so nothing else lists options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

from spark_queue.errors import OptionError

T = TypeVar("T")

#: The keys in the metadata of a field.
_OPTION, _PART, _WITHOUT = "option", "part", "without"


@dataclass(frozen=True)
class Option:
    """What is declared of an option.

    `parse` raises a `ValueError` that continues the words "must be". `shown`: its default in the
    table. `after`: the option before it in the table; by default, that of the field before it.
    `mode`: the value of the option `mode` that it needs. `secret`: whether errors hide its value.
    `key`: its name in snake case; by default, that of the field.
    """

    parse: Callable[[str], Any]
    doc: str
    shown: str
    after: str = ""
    mode: str = ""
    secret: bool = False
    key: str = ""


def option(parse: Callable[[str], Any], doc: str, default: Any = None, shown: str = "", **facts: Any) -> Any:
    """Return the field of an option. Its default is shown in the table unless `shown` is set.

    For the other arguments, see `Option`.
    """
    declared = Option(parse, doc, shown or str(default).lower(), **facts)
    return field(default=default, metadata={_OPTION: declared})


def part(kind: type[Any], *, without: tuple[str, ...] = ()) -> Any:
    """Return the field of a part that roles share. `without`: its options that this role lacks."""
    return field(default_factory=kind, metadata={_PART: kind, _WITHOUT: without})


def own_options(kind: type[Any]) -> Iterator[tuple[str, Option]]:
    """Yield the options that a class declares itself, by name in snake case."""
    for one in fields(kind):
        if declared := one.metadata.get(_OPTION):
            yield declared.key or one.name, declared


def parts_of(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield the classes of the parts of a class."""
    yield from (one.metadata[_PART] for one in fields(kind) if _PART in one.metadata)


def declared_options(kind: type[Any]) -> Iterator[tuple[str, Option]]:
    """Yield the options of a class and of its parts, by name in snake case."""
    yield from own_options(kind)
    for one in fields(kind):
        if nested := one.metadata.get(_PART):
            yield from ((key, found) for key, found in own_options(nested) if key not in one.metadata[_WITHOUT])


def build(kind: type[T], chosen: Mapping[str, Any]) -> T:
    """Return an object with the chosen values, of a class and its parts."""
    values: dict[str, Any] = {}
    for one in fields(cast("type[Any]", kind)):
        if nested := one.metadata.get(_PART):
            values[one.name] = build(nested, chosen)
        elif (key := one.metadata[_OPTION].key or one.name) in chosen:
            values[one.name] = chosen[key]
    return kind(**values)


def option_name(key: str) -> str:
    """Return the name of an option as users write it, in camel case."""
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def option_error(name: str, why: str) -> OptionError:
    """Return the error for an option. `why` continues its name."""
    return OptionError(f"option {name!r} {why}", option=name)
