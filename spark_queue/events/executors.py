"""Executors: which function processes which events.

The source and the type of an event select its executor. Executors are matched one by one, in the
order in which they were declared, across files. The first match processes the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.events.event import Event, check_name
from spark_queue.options.parsers import duration

#: Processes an event, with the `config` of its executor. Returns its status; `None` is `finished`.
ExecutorFunction = Callable[[Event, Any], str | None]

#: Where a function runs: in Spark's workers, or in the process of the query and its Spark session.
Where = Literal["driver", "executors"]


def _to_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def validate_name(value: Any) -> str:
    """Return a source or a type of a file. Raises `ValueError` if it is invalid."""
    try:
        return check_name(value, "it")
    except OptionError:
        raise ValueError("text without spaces, usually a URI") from None


def _validate_function(value: Any) -> Any:
    if callable(value):
        return value
    module, colon, name = str(value).partition(":")
    if isinstance(value, str) and colon and all(one.isidentifier() for one in (*module.split("."), name)):
        return value
    raise ValueError("a function, or module:function")


def _parse_duration(value: Any) -> Any:
    return value if isinstance(value, int) else duration(str(value))


#: How a file becomes dataclasses: its keys are in camelCase, and unknown keys are refused.
EVENT_FILE_CONFIG = ConfigDict(extra="forbid", alias_generator=to_camel, arbitrary_types_allowed=True)

Names = Annotated[
    Sequence[Annotated[str, BeforeValidator(validate_name)]], BeforeValidator(_to_list), Field(min_length=1)
]
DurationMs = Annotated[int, BeforeValidator(_parse_duration), Field(gt=0)]


@dataclass(frozen=True)
class Executor:
    """A function, and the events that it processes: those of these sources and these types.

    `function`: a callable, or `module:function`. `config`: any value, passed to the function
    unchanged. `time_limit` (ms): how long it may run for one event (`None`: the execute timeout).
    `retries`: how often an event is retried before its status is `failed`. `backoff` (ms): the
    delay of the first retry; it doubles with each further one, up to a day.
    """

    __pydantic_config__ = EVENT_FILE_CONFIG

    source: Names
    type: Names
    function: Annotated[Any, BeforeValidator(_validate_function)]
    config: Any = field(default=None, repr=False)  # it may hold secrets
    time_limit: DurationMs | None = None
    retries: Annotated[int, Field(ge=0)] = 0
    backoff: DurationMs = 1_000
    where: Where = "executors"
    place: Annotated[str, Field(init=False)] = field(default="", compare=False)  #: the file and line that declare it

    def __post_init__(self) -> None:
        """Check the values by the rules for a file. Raises `OptionError` if one is invalid."""
        for name in ("source", "type"):
            names = tuple(check_name(one, name) for one in _to_list(getattr(self, name)))
            if not names:
                raise OptionError(f"an executor needs a {name}", option=name)
            object.__setattr__(self, name, names)
        try:
            _validate_function(self.function)
        except ValueError as error:
            raise OptionError(f"function {self.function!r} must be {error}", option="function") from None

    def matches(self, event: Event) -> bool:
        """Return whether it processes this event."""
        return event.source in self.source and event.type in self.type

    def load_function(self) -> ExecutorFunction:
        """Return the function. Raises `OptionError` if it cannot be found."""
        if not isinstance(self.function, str):
            return self.function  # type: ignore[no-any-return]
        module, _, name = self.function.partition(":")
        where = f"{self.place}: " if self.place else ""
        try:
            imported = import_module(module)
        except ImportError as error:
            raise OptionError(f"{where}{self.function}: {error}", function=self.function) from error
        if not callable(found := getattr(imported, name, None)):
            raise OptionError(
                f"{where}module {module!r} has no function {name!r}{did_you_mean(name, vars(imported))}",
                function=self.function,
            )
        return found  # type: ignore[no-any-return]

    def __str__(self) -> str:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__qualname__", "function")
        return f"{name} ({self.place})" if self.place else str(name)


class Executors:
    """Executors in the order in which they were declared."""

    def __init__(self, executors: Iterable[Executor] = ()) -> None:
        self._all = tuple(executors)
        self._found: dict[tuple[str, str], Executor | None] = {}
        self._functions: dict[int, ExecutorFunction] = {}

    def __iter__(self) -> Iterator[Executor]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __add__(self, others: Iterable[Executor]) -> Executors:
        return Executors([*self._all, *others])

    def find(self, event: Event) -> Executor | None:
        """Return the first executor that matches an event, or `None`."""
        key = event.source, event.type
        if key not in self._found:
            self._found[key] = next((one for one in self._all if one.matches(event)), None)
        return self._found[key]

    def function_of(self, executor: Executor) -> ExecutorFunction:
        """Return the function of one of these executors, imported once.

        Raises `OptionError` if it cannot be found.
        """
        if id(executor) not in self._functions:
            self._functions[id(executor)] = executor.load_function()
        return self._functions[id(executor)]

    def overlap_warnings(self) -> list[str]:
        """Return a warning for each source and type of an executor that an earlier one covers."""
        warnings, first = [], dict[tuple[str, str], Executor]()
        for one in self._all:
            for source in one.source:
                for type in one.type:
                    before = first.setdefault((source, type), one)
                    if before is not one:
                        warnings.append(f"events {type} of {source} go to {before}, and not to {one} after it")
        return warnings

    def check(self) -> None:
        """Import all functions. Raises `OptionError` for the first that cannot be found."""
        for one in self._all:
            one.load_function()
