"""Load executors, heartbeats and settings from files.

    executors:
      - source: http://example.org/flights
        type: [landed, departed]
        function: work.flights:note               # module:function, called with event and config
        config: {table: flights}
        timeLimit: PT10M
        retries: 3
        backoff: PT10S
        where: executors                          # or driver
    heartbeats:
      - id: OneMinute
        type: http://noslogan.org/hub-queue/event/ping
    settings:
      pendingTimeout: PT30M

A file may declare any of the three. Files may also be hub-queue's XML: elements `executor` and
`heartbeat-config`, at any depth and in any namespace. There, the `module` of an executor must be a
Python `module:function`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path as File
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from spark_queue.errors import did_you_mean
from spark_queue.events.executors import EVENT_FILE_CONFIG, Executor, Executors
from spark_queue.events.heartbeats import Heartbeat
from spark_queue.events.settings import EventSettings
from spark_queue.events.xml_payload import value_of
from spark_queue.graph.file_mistakes import Mistake, graph_error, mistake_from_pydantic
from spark_queue.graph.loader import Secrets, VariableLookup, parse_declarations, read_text, variable_lookup
from spark_queue.graph.parts import FieldPath, SourceLocation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Declarations:
    """The executors, heartbeats and settings that files declare."""

    __pydantic_config__ = EVENT_FILE_CONFIG

    executors: list[Executor] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    settings: EventSettings = field(default_factory=EventSettings)


_KINDS: dict[str, Any] = {"executors": Executor, "heartbeats": Heartbeat, "settings": EventSettings}
_ADAPTER: TypeAdapter[Declarations] = TypeAdapter(Declarations)


def executors_in(*files: str | os.PathLike[str]) -> Executors:
    """Return the executors of these files, in order; see `declared_in`. Overlaps are logged."""
    executors = Executors(declared_in(*files).executors)
    for one in executors.overlap_warnings():
        log.warning("%s", one)
    return executors


def heartbeats_in(*files: str | os.PathLike[str]) -> list[Heartbeat]:
    """Return the heartbeats of these files; see `declared_in`."""
    return declared_in(*files).heartbeats


def declared_in(*files: str | os.PathLike[str], secrets: Secrets | None = None) -> Declarations:
    """Return the declarations of YAML, JSON and XML files; only one file may have settings.

    Variables such as `${NAME}` are filled in as in a graph. A heartbeat without a type is skipped
    and logged. Raises `GraphError` with every mistake of a file, by line, and `OSError` if a file
    cannot be read.
    """
    executors: list[Executor] = []
    heartbeats: list[Heartbeat] = []
    settings, settings_file = EventSettings(), ""
    for file in files:
        one, has_settings = _load_file(File(file), variable_lookup(secrets))
        executors += one.executors
        heartbeats += one.heartbeats
        if has_settings:
            if settings_file:
                problem = f"{settings_file} has settings, too: keep them in one file"
                raise graph_error([Mistake(("settings",), problem)], SourceLocation(str(file)))
            settings, settings_file = one.settings, str(file)
    return Declarations(executors, heartbeats, settings)


def _load_file(file: File, fill: VariableLookup) -> tuple[Declarations, bool]:
    text, skipped = read_text(file), set[int]()
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        raw, origin, mistakes = _parse_xml(text, str(file))
    else:
        raw, origin, mistakes = parse_declarations(text, str(file), fill, list(_KINDS))
        skipped = _skip_untyped_heartbeats(raw, origin)
    try:
        made = _ADAPTER.validate_python(raw)
    except ValidationError as error:
        mistakes += [mistake_from_pydantic(one, _allowed_keys) for one in error.errors(include_url=False)]
    if mistakes:
        distinct = {(one.path, one.text): one for one in mistakes}
        raise graph_error(list(distinct.values()), origin)
    placed = [
        replace(one, place=f"{file.name}:{origin.lines.get(('executors', n)) or n + 1}")
        for n, one in enumerate(made.executors)
    ]
    heartbeats = [one for n, one in enumerate(made.heartbeats) if n not in skipped]
    return replace(made, executors=placed, heartbeats=heartbeats), "settings" in raw


def _allowed_keys(path: FieldPath) -> list[str]:
    """Return the keys that are allowed at a path."""
    kind = next((_KINDS[str(part)] for part in path if part in _KINDS), Declarations)
    return [to_camel(one.name) for one in fields(kind) if one.name != "place"]


def _skip_untyped_heartbeats(raw: Any, origin: SourceLocation) -> set[int]:
    """Log heartbeats without a type, which hub-queue skips, too; return their numbers.

    A valid heartbeat takes the place of each, so the others keep their numbers, and so their lines.
    """
    found = raw.get("heartbeats") if isinstance(raw, dict) else None
    skipped = set()
    for number, one in enumerate(found if isinstance(found, list) else ()):
        if isinstance(one, dict) and not one.get("type") and not _has_misspelled_type(one):
            line = origin.lines.get(("heartbeats", number), 0)
            log.warning("%s, line %d: heartbeat %r is skipped: it has no type", origin.file, line, one.get("id"))
            raw["heartbeats"][number] = {"id": "skipped", "type": "skipped"}
            skipped.add(number)
    return skipped


def _has_misspelled_type(heartbeat: dict[str, Any]) -> bool:
    """Return whether a key of a heartbeat looks like a misspelled `type`, which is a mistake."""
    known = [one.name for one in fields(Heartbeat)]
    return any(key not in known and did_you_mean(key, ["type"]) for key in heartbeat)


# --- hub-queue's XML ------------------------------------------------------------------------------


def _parse_xml(text: str, file: str) -> tuple[Any, SourceLocation, list[Mistake]]:
    """Parse an XML file into the form of a YAML file.

    Raises `GraphError` for invalid XML, entities and external references.
    """
    import defusedxml.ElementTree as Safe
    from defusedxml import DefusedXmlException

    lines: dict[FieldPath, int] = {}
    builder = _LineRecordingBuilder()
    parser = Safe.XMLParser(target=builder)
    builder.parser = parser.parser
    try:
        parser.feed(text)
        root: Element = parser.close()
    except (Safe.ParseError, DefusedXmlException) as error:
        line, why = 0, f"{type(error).__name__} (entities and DTDs are not allowed)"
        if isinstance(error, Safe.ParseError):
            line, why = error.position[0], str(error).partition(":")[0]
        raise graph_error([Mistake((), f"not valid XML: {why}", line)], SourceLocation(file)) from None
    mistakes: list[Mistake] = []
    executors: list[dict[str, Any]] = []
    heartbeats: list[dict[str, Any]] = []
    for element in root.iter():
        if local_name(element) == "executor":
            lines["executors", len(executors)] = builder.lines[element]
            executors.append(_parse_executor(element, ("executors", len(executors)), mistakes))
        elif local_name(element) == "heartbeat-config":
            found, line = _parse_heartbeat(element, ("heartbeats", len(heartbeats)), mistakes), builder.lines[element]
            if found.get("type"):
                lines["heartbeats", len(heartbeats)] = line
                heartbeats.append(found)
            else:
                log.warning("%s, line %d: heartbeat %r is skipped: it has no type", file, line, found.get("id"))
    if not executors and not heartbeats:
        mistakes.append(Mistake((), "the file has neither an executor nor a heartbeat-config element"))
    return {"executors": executors, "heartbeats": heartbeats}, SourceLocation(file, lines), mistakes


class _LineRecordingBuilder(TreeBuilder):
    """A builder of XML elements that records the line of each."""

    parser: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Element, int] = {}

    def start(self, tag: str, attrs: dict[Any, Any]) -> Element:
        """Record the line of the element."""
        element = super().start(tag, attrs)
        self.lines[element] = self.parser.CurrentLineNumber
        return element


def _parse_executor(element: Element, path: FieldPath, mistakes: list[Mistake]) -> dict[str, Any]:
    module, language = _child_text(element, "module"), (_child_text(element, "language") or "python").lower()
    if language != "python" or ":" not in (module or ""):
        problem = f"must be a Python module:function, not {module!r} in {language}"
        mistakes.append(Mistake((*path, "module"), problem))
    if database := _child_text(element, "database"):
        problem = (
            f"an executor in Python opens its databases itself: leave {database!r} out, and give the function "
            "the URL in its config"
        )
        mistakes.append(Mistake((*path, "database"), problem))
    config = element.find("{*}config")
    return {
        "source": [_text_of(one) for one in element.iterfind("{*}source")],
        "type": [_text_of(one) for one in element.iterfind("{*}type")],
        "function": module or "",
        "config": None if config is None else _value_of(config, (*path, "config"), mistakes),
    }


def _parse_heartbeat(element: Element, path: FieldPath, mistakes: list[Mistake]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for one in element:
        name = local_name(one)
        if name in ("heartbeat-id", "hearbeat-id"):  # misspelled in hub-queue's README and in its files
            made["id"] = _text_of(one)
        elif name == "payload":
            made["payload"] = _value_of(one, (*path, "payload"), mistakes)
        elif name in ("source", "type", "description"):
            made[name] = _text_of(one)
    return made


def _value_of(element: Element, path: FieldPath, mistakes: list[Mistake]) -> Any:
    try:
        return value_of(element)
    except ValueError as error:
        mistakes.append(Mistake(path, f"a value does not fit its type: {error}"))
        return None


def _child_text(element: Element, name: str) -> str | None:
    child = element.find(f"{{*}}{name}")
    return None if child is None else _text_of(child)


def _text_of(element: Element) -> str:
    return (element.text or "").strip()


def local_name(element: Element) -> str:
    """Return the name of an XML element without its namespace."""
    return str(element.tag).rpartition("}")[2]
