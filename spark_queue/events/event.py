"""An event: something that happened, and the URIs that it is about, for an executor to process.

An event is a message of a queue. Its payload is the JSON object that `Event.document` returns. Its
status is not in the payload: it follows from where the message is (`spark_queue.events.status`).
Names and URIs are those of hub-queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from xml.etree.ElementTree import Element, tostring

from spark_queue.errors import MessageError, OptionError
from spark_queue.events.xml_payload import XmlText
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import EPOCH

#: The prefix of hub-queue's URIs.
BASE = "http://noslogan.org/hub-queue/"
STATUS_PREFIX = f"{BASE}status/"

#: The statuses that every event may have; executors may return others.
EventStatus = Literal["new", "pending", "executing", "finished", "failed"]
STATUSES: tuple[EventStatus, ...] = get_args(EventStatus)
NEW, PENDING, EXECUTING, FINISHED, FAILED = STATUSES

#: The sources of events of this package: of internal events, and of heartbeats without a source.
INTERNAL_SOURCE, HEARTBEAT_SOURCE = f"{BASE}source/internal", f"{BASE}source/heartbeat"

#: The prefix of the types of internal events.
INTERNAL_TYPE_PREFIX = f"{BASE}event/"

#: Other names for the same, which mean the same: those of hub-queue's README, and of the
#: configurations that it ships.
OTHER_SOURCES = (f"{BASE}queue/source/internal", f"{BASE}queue/source/heartbeat", f"{BASE}status/internal")
OTHER_TYPE_PREFIX = f"{BASE}queue/type/"

#: The URI of an event as a document, around its id.
DOCUMENT_START, DOCUMENT_END = "/noslogan.org/hub-queue/queue/", ".xml"

#: Forms of a payload: none, the text of an XML element, an object, a list, or a value as text.
PayloadForm = Literal["none", "element", "map", "array", "atomic"]
PAYLOAD_FORMS = frozenset(get_args(PayloadForm))

_NOT_AN_EVENT = "it is not an event: its payload must be a JSON object with the strings 'source' and 'type'"

#: The default maximum number of URIs of an event.
MAX_URIS = 500

#: How long before its creation an event with priority is due (ms, about 31 years).
PRIORITY_LEAD_MS = 10**12


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    `payload` has the form that `kind` names: `None`, the text of an XML element, a `dict`, a `list`
    or a `str`. `uris`: the things that it is about, in order. `created`: its creation time (UTC),
    by the database's clock. `user`, `host`: the user and the machine that created it.
    `transaction`: an id that events share if they were created together. `tries`: the number of
    failed tries. `proof`: of an internal event, see `spark_queue.events.origin`.
    """

    id: str
    source: str
    type: str
    payload: Json = None
    kind: PayloadForm = "none"
    uris: tuple[str, ...] = ()
    priority: bool = False
    user: str = ""
    host: str = ""
    transaction: str = ""
    created: datetime = EPOCH
    tries: int = field(default=0, compare=False)
    proof: str = field(default="", compare=False, repr=False)

    @classmethod
    def from_message(cls, message: Message) -> Event:
        """Return the event that a message holds.

        Raises `ValueError` if the message is not an event, `MessageError` if its payload is bytes.
        """
        return cls.from_json(message.id, message.payload, message.tries, lambda: message.mature)

    @classmethod
    def from_json(cls, id: str, document: object, tries: int, get_mature: Callable[[], datetime]) -> Event:
        """Return the event that the payload of a message describes.

        `get_mature` is called for the creation time if `document` has none.
        Raises `ValueError` if it is not an event, `MessageError` if its own payload is bytes.
        """
        if not isinstance(document, dict):
            raise ValueError(_NOT_AN_EVENT)
        source, type = document.get("source"), document.get("type")
        if not (isinstance(source, str) and isinstance(type, str)):
            raise ValueError(_NOT_AN_EVENT)
        uris, created = document.get("uris"), document.get("created")
        if uris and not (isinstance(uris, list) and all(isinstance(one, str) for one in uris)):
            raise ValueError("its uris must be a list of text")
        payload: Any = document.get("payload")
        kind: Any = document.get("kind")
        if kind not in PAYLOAD_FORMS:
            payload, kind = normalize_payload(payload)
        return cls(
            id,
            source,
            type,
            payload,
            kind,
            tuple(uris or ()),
            document.get("priority") is True,
            str(document.get("user") or ""),
            str(document.get("host") or ""),
            str(document.get("transaction") or ""),
            parse_timestamp(created) if isinstance(created, str) else get_mature(),
            tries,
            str(document.get("proof") or ""),
        )

    def document(self) -> dict[str, Any]:
        """Return the payload of its message."""
        return {
            "source": self.source,
            "type": self.type,
            "payload": self.payload,
            "kind": self.kind,
            "uris": list(self.uris),
            "priority": self.priority,
            "user": self.user,
            "host": self.host,
            "transaction": self.transaction,
            "created": format_timestamp(self.created),
            **({"proof": self.proof} if self.proof else {}),
        }

    @property
    def mature(self) -> datetime:
        """The time at which its message is due; priority makes it earlier than all others."""
        return due_time(self.created, self.priority)


def new_transaction() -> str:
    """Return a new id for events that are created together."""
    return uuid.uuid4().hex[:12]


def due_time(created: datetime, priority: bool) -> datetime:
    """Return when the message of an event is due."""
    return datetime.fromtimestamp(created.timestamp() - PRIORITY_LEAD_MS / 1000, UTC) if priority else created


def normalize_payload(payload: object) -> tuple[Json, PayloadForm]:
    """Return a payload as an event holds it, and its kind. Raises `MessageError` for bytes.

    XML elements, and their texts, become XML text; dates and times become ISO text; both at any
    depth. Any other single value becomes its text.
    """
    if payload is None:
        return None, "none"
    if isinstance(payload, bytes | bytearray):
        raise MessageError("payload: an event cannot hold bytes; encode them as text (base64)")
    plain = _to_jsonable(payload)
    if isinstance(payload, Element | XmlText):
        return plain, "element"
    if isinstance(plain, dict):
        return plain, "map"
    if isinstance(plain, list):
        return plain, "array"
    return str(plain).lower() if isinstance(plain, bool) else str(plain), "atomic"


def _to_jsonable(value: object) -> Any:
    if isinstance(value, Element):
        return tostring(value, encoding="unicode")
    if isinstance(value, XmlText):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _to_jsonable(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_to_jsonable(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def check_name(value: object, name: str) -> str:
    """Return a source or a type. Raises `OptionError` unless it is text without spaces."""
    if not isinstance(value, str) or not value or any(one.isspace() for one in value):
        raise OptionError(f"{name} {value!r} must be text without spaces, usually a URI", option=name)
    return value


def event_id(uri: str) -> str:
    """Return the id in the URI of an event as a document. Any other text is returned unchanged."""
    if uri.startswith(DOCUMENT_START) and uri.endswith(DOCUMENT_END):
        return uri[len(DOCUMENT_START) : -len(DOCUMENT_END)]
    return uri


def split_uris(uris: Sequence[str], max_uris: int = MAX_URIS) -> list[tuple[str, ...]]:
    """Split URIs into parts of up to `max_uris`, one part for each event.

    By default 1,001 URIs become parts of 500, 500 and 1; no URIs become no parts. Raises
    `OptionError` if `uris` is not a list of non-empty texts, or `max_uris` is less than 1.
    """
    values: Sequence[object] = uris
    if isinstance(uris, str) or not all(isinstance(one, str) and one for one in values):
        raise OptionError("uris must be a list of texts that are not empty", option="uris")
    if max_uris < 1:
        raise OptionError(f"max_uris must be at least 1, not {max_uris}", option="max_uris")
    return [tuple(uris[start : start + max_uris]) for start in range(0, len(uris), max_uris)]


def short_status(status: str, prefix: str = STATUS_PREFIX) -> str:
    """Return the short name of a status: `finished` for `http://…/status/finished`.

    An executor's own status is returned unchanged.
    """
    name = status.removeprefix(prefix)
    return name if name in STATUSES else status


def status_uri(status: str, prefix: str = STATUS_PREFIX) -> str:
    """Return a status as a URI. An executor's own status is returned unchanged."""
    return f"{prefix}{status}" if status in STATUSES else status


def format_timestamp(timestamp: datetime) -> str:
    """Return a timestamp as ISO text in UTC, with milliseconds."""
    return timestamp.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> datetime:
    """Parse a timestamp in ISO format, in UTC by default. Raises `ValueError` if it is invalid."""
    timestamp = datetime.fromisoformat(text)
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
