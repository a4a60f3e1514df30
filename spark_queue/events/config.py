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
from xml.etree.ElementTree import Element, TreeBuilder, tostring

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from spark_queue.errors import near
from spark_queue.events.executors import DECLARED, Executor, Executors
from spark_queue.events.heartbeats import Heartbeat
from spark_queue.events.settings import EventSettings
from spark_queue.graph.file_mistakes import Mistake, mistake_of, refusal
from spark_queue.graph.loader import Fill, Secrets, loaded, text_of, variables
from spark_queue.graph.parts import Origin, Path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Declarations:
    """The executors, heartbeats and settings that files declare."""

    __pydantic_config__ = DECLARED

    executors: list[Executor] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    settings: EventSettings = field(default_factory=EventSettings)


_KINDS: dict[str, Any] = {"executors": Executor, "heartbeats": Heartbeat, "settings": EventSettings}
_DECLARED: TypeAdapter[Declarations] = TypeAdapter(Declarations)


def executors_in(*files: str | os.PathLike[str]) -> Executors:
    """Return the executors of these files, in order; see `declared_in`. Overlaps are logged."""
    executors = Executors(declared_in(*files).executors)
    for one in executors.doubled():
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
    settings, told_by = EventSettings(), ""
    for file in files:
        one, told = _of_file(File(file), variables(secrets))
        executors += one.executors
        heartbeats += one.heartbeats
        if told:
            if told_by:
                raise refusal(
                    [Mistake(("settings",), f"{told_by} has settings, too: keep them in one file")], Origin(str(file))
                )
            settings, told_by = one.settings, str(file)
    return Declarations(executors, heartbeats, settings)


def _of_file(file: File, fill: Fill) -> tuple[Declarations, bool]:
    text = text_of(file)
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        raw, origin, mistakes = _of_xml(text, str(file))
    else:
        raw, origin, mistakes = loaded(text, str(file), fill, list(_KINDS))
        _skip_without_type(raw, origin)
    try:
        made = _DECLARED.validate_python(raw)
    except ValidationError as error:
        mistakes += [mistake_of(one, _keys_at) for one in error.errors(include_url=False)]
    if mistakes:
        raise refusal(_once(mistakes), origin)
    placed = [
        replace(one, place=f"{file.name}:{origin.lines.get(('executors', n)) or n + 1}")
        for n, one in enumerate(made.executors)
    ]
    return replace(made, executors=placed), "settings" in raw


def _once(mistakes: list[Mistake]) -> list[Mistake]:
    return list({(one.path, one.text): one for one in mistakes}.values())


def _keys_at(path: Path) -> list[str]:
    """Return the keys that are allowed at a path."""
    kind = next((_KINDS[str(part)] for part in path if part in _KINDS), Declarations)
    return [to_camel(one.name) for one in fields(kind) if one.name != "place"]


def _skip_without_type(raw: Any, origin: Origin) -> None:
    """Remove heartbeats without a type, as hub-queue does, and log each."""
    found = raw.get("heartbeats") if isinstance(raw, dict) else None
    if not isinstance(found, list):
        return
    for number, one in enumerate(found):
        if isinstance(one, dict) and not one.get("type") and not _near_type(one):
            line = origin.lines.get(("heartbeats", number), 0)
            log.warning("%s, line %d: heartbeat %r is skipped: it has no type", origin.file, line, one.get("id"))
    raw["heartbeats"] = [one for one in found if not isinstance(one, dict) or one.get("type") or _near_type(one)]


def _near_type(heartbeat: dict[str, Any]) -> bool:
    """Return whether a key of a heartbeat looks like a misspelled `type`, which is a mistake."""
    known = [one.name for one in fields(Heartbeat)]
    return any(key not in known and near(key, ["type"]) for key in heartbeat)


# --- hub-queue's XML ------------------------------------------------------------------------------------------------


def _of_xml(text: str, file: str) -> tuple[Any, Origin, list[Mistake]]:
    """Parse an XML file into the form of a YAML file.

    Raises `GraphError` for invalid XML, entities and external references.
    """
    import defusedxml.ElementTree as Safe
    from defusedxml import DefusedXmlException

    lines: dict[Path, int] = {}
    seen = _Lines()
    parser = Safe.XMLParser(target=seen)
    seen.parser = parser.parser
    try:
        parser.feed(text)
        root: Element = parser.close()
    except (Safe.ParseError, DefusedXmlException) as error:
        line = getattr(error, "position", (0, 0))[0]
        raise refusal([Mistake((), f"not valid XML: {_said_by(error)}", line)], Origin(file)) from None
    mistakes: list[Mistake] = []
    executors: list[dict[str, Any]] = []
    heartbeats: list[dict[str, Any]] = []
    for element in root.iter():
        if _local(element) == "executor":
            lines["executors", len(executors)] = seen.lines[element]
            executors.append(_executor(element, ("executors", len(executors)), mistakes))
        elif _local(element) == "heartbeat-config":
            found = _heartbeat(element)
            if found.get("type"):
                lines["heartbeats", len(heartbeats)] = seen.lines[element]
                heartbeats.append(found)
            else:
                line = seen.lines[element]
                log.warning("%s, line %d: heartbeat %r is skipped: it has no type", file, line, found.get("id"))
    if not executors and not heartbeats:
        mistakes.append(Mistake((), "the file has neither an executor nor a heartbeat-config element"))
    return {"executors": executors, "heartbeats": heartbeats}, Origin(file, lines), mistakes


class _Lines(TreeBuilder):
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


def _executor(element: Element, path: Path, mistakes: list[Mistake]) -> dict[str, Any]:
    module, language = _text(element, "module"), (_text(element, "language") or "python").lower()
    if language != "python" or ":" not in (module or ""):
        what = f"must be a Python module:function, not {module!r} in {language}"
        mistakes.append(Mistake((*path, "module"), what))
    config = next((one for one in element if _local(one) == "config"), None)
    made: dict[str, Any] = {
        "source": [_said(one) for one in element if _local(one) == "source"],
        "type": [_said(one) for one in element if _local(one) == "type"],
        "function": module or "",
    }
    if config is not None:
        made["config"] = _content(config)
    return made


def _heartbeat(element: Element) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for one in element:
        name = _local(one)
        if name in ("heartbeat-id", "hearbeat-id"):  # misspelled in hub-queue's README and in its files
            made["id"] = _said(one)
        elif name == "payload":
            made["payload"] = _content(one)
        elif name in ("source", "type", "description"):
            made[name] = _said(one)
    return made


def _content(element: Element) -> str | None:
    """Return the children of an element as XML text, else its text, or `None` if it is empty."""
    children = list(element)
    if children:
        return "".join(tostring(one, encoding="unicode").strip() for one in children)
    return _said(element) or None


def _said_by(error: Exception) -> str:
    """Return why XML is refused."""
    if hasattr(error, "position"):
        return str(error).partition(":")[0]
    return f"{type(error).__name__} (entities and DTDs are not allowed)"


def _text(element: Element, name: str) -> str | None:
    return next((_said(one) for one in element if _local(one) == name), None)


def _said(element: Element) -> str:
    return (element.text or "").strip()


def _local(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]
