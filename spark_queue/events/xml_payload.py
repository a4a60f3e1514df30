"""Read payloads and configs in XML, as hub-queue and MarkLogic write them.

An object and a list are `json:object` and `json:array`, a map is `map:map`, each in a namespace of
MarkLogic. A single value is text, and any other XML is itself. MarkLogic's documentation of
`json:object` and `map:map` has these forms.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, tostring
from xml.sax.saxutils import escape

JSON_NS, MAP_NS = "http://marklogic.com/xdmp/json", "http://marklogic.com/xdmp/map"
INSTANCE_NS = "http://www.w3.org/2001/XMLSchema-instance"

_INTEGERS = frozenset((
    "integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger", "unsignedInt", "unsignedLong",
    "unsignedShort",
))  # fmt: skip


class XmlText(str):
    """The text of an element, or of text and elements: a payload of the kind `element`."""

    __slots__ = ()


def value_of(parent: Element) -> Any:
    """Return what an element contains: a dict, a list, `XmlText`, text, or `None` if it is empty.

    Mixed content stays as it is. Raises `ValueError` for an invalid number.
    """
    if not len(parent):
        return (parent.text or "").strip() or None
    mixed = [parent.text, *(one.tail for one in parent)]
    if len(parent) == 1 and not any(map(str.strip, filter(None, mixed))):
        only = parent[0]
        if _name(only) in ((JSON_NS, "object"), (MAP_NS, "map"), (JSON_NS, "array")):
            return _converted(only)
    inner = [escape(parent.text or ""), *(tostring(one, encoding="unicode") for one in parent)]
    return XmlText("".join(inner).strip())


def _converted(element: Element) -> Any:
    """Return the dict or the list of a map, an object or an array."""
    if _name(element)[1] == "array":
        return [_item(one) for one in element]
    found: dict[str, Any] = {}
    for entry in element:
        values = [_item(one) for one in entry]
        # In a map, a key has a sequence of values: one is the value, others are a list.
        found[entry.get("key", "")] = values[0] if len(values) == 1 else values
    return found


def _item(value: Element) -> Any:
    """Return the value of `json:value` or `map:value`, by its type."""
    if value.get(f"{{{INSTANCE_NS}}}nil") in ("true", "1"):
        return None
    if len(value):
        return value_of(value)
    text, kind = value.text or "", value.get(f"{{{INSTANCE_NS}}}type", "").rpartition(":")[2]
    if kind in _INTEGERS:
        return int(text)
    if kind == "boolean":
        return text.strip() in ("true", "1")
    return float(text) if kind in ("double", "float", "decimal") else text


def _name(element: Element) -> tuple[str, str]:
    """Return the namespace and the local name of an element."""
    ns, _, name = str(element.tag).removeprefix("{").rpartition("}")
    return ns, name
