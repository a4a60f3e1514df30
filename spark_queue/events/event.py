"""What an event is: something that has happened, to so many things, for an executor to work on.

An event is a message of a queue. Its payload is the JSON object that `Event.document` gives; its status is not in it,
but is where the message lies (see `spark_queue.events`). Words and URIs are those of hub-queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args
from xml.etree.ElementTree import Element, tostring

from spark_queue.errors import MessageError, OptionError
from spark_queue.messages.message import Message
from spark_queue.messages.payload import Json
from spark_queue.messages.schema import EPOCH

#: How the names of hub-queue begin.
BASE = "http://noslogan.org/hub-queue/"
STATUS_PREFIX = f"{BASE}status/"

#: The statuses that every event may have; executors may give others.
EventStatus = Literal["new", "pending", "executing", "finished", "failed"]
STATUSES: tuple[EventStatus, ...] = get_args(EventStatus)
NEW, PENDING, EXECUTING, FINISHED, FAILED = STATUSES

#: The sources of the events that come from here: of housekeeping, and of heartbeats that name none.
INTERNAL, HEARTBEAT = f"{BASE}source/internal", f"{BASE}source/heartbeat"

#: How the types of internal events begin.
TYPES = f"{BASE}event/"

#: How a payload is written: nothing; the text of an XML element; an object; a list; anything else, as text.
PayloadForm = Literal["none", "element", "map", "array", "atomic"]
PAYLOAD_FORMS = frozenset(get_args(PayloadForm))

_NO_EVENT = "it is no event: no JSON object with the texts source and type"

#: What events may be about at most, unless that is told.
MAX_URIS = 500

#: An event with priority is due so many ms (about 31 years) before it was created: before all without.
AHEAD = 10**12


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    `payload` is what `kind` says: `None`, the text of an XML element, a `dict`, a `list` or a `str`. `uris`: what it
    is about, in order. `created`: when (UTC), by the database's clock; `user` and `host`: by whom and where;
    `transaction`: the same for all that were made together. `tries`: how often it was tried in vain.
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

    @classmethod
    def of(cls, message: Message) -> Event:
        """The event that a message is. Raises `ValueError` for a message that is none."""
        return cls.told(message.id, message.payload, message.tries, lambda: message.mature)

    @classmethod
    def told(cls, id: str, told: object, tries: int, mature: Callable[[], datetime]) -> Event:
        """The same, of what is in the message; `mature` is asked where that does not tell when it was created."""
        if not isinstance(told, dict):
            raise ValueError(_NO_EVENT)
        source, type, uris, created = told.get("source"), told.get("type"), told.get("uris"), told.get("created")
        if not (isinstance(source, str) and isinstance(type, str)):
            raise ValueError(_NO_EVENT)
        if uris and not (isinstance(uris, list) and all(isinstance(one, str) for one in uris)):
            raise ValueError("its uris must be a list of text")
        payload: Any = told.get("payload")
        kind: Any = told.get("kind")
        if kind not in PAYLOAD_FORMS:
            payload, kind = written(payload)
        return cls(
            id,
            source,
            type,
            payload,
            kind,
            tuple(uris or ()),
            told.get("priority") is True,
            str(told.get("user") or ""),
            str(told.get("host") or ""),
            str(told.get("transaction") or ""),
            moment(created) if isinstance(created, str) else mature(),
            tries,
        )

    def document(self) -> dict[str, Any]:
        """What the payload of its message is."""
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
            "created": iso(self.created),
        }

    @property
    def mature(self) -> datetime:
        """When its message is due: this is what makes priority come first."""
        return due(self.created, self.priority)


def new_transaction() -> str:
    """A name for events that are made together."""
    return uuid.uuid4().hex[:12]


def due(created: datetime, priority: bool) -> datetime:
    """When the message of an event is due."""
    return datetime.fromtimestamp(created.timestamp() - AHEAD / 1000, UTC) if priority else created


def written(payload: object) -> tuple[Json, PayloadForm]:
    """Return a payload as an event holds it, and its kind. Raises `MessageError` for bytes.

    Elements become XML text, at any depth; moments their ISO format; any other single value its text.
    """
    if payload is None:
        return None, "none"
    if isinstance(payload, Element):
        return _plain(payload), "element"
    if isinstance(payload, Mapping):
        return _plain(payload), "map"
    if isinstance(payload, Sequence) and not isinstance(payload, str | bytes | bytearray):
        return _plain(payload), "array"
    if isinstance(payload, bytes | bytearray):
        raise MessageError("payload: an event cannot hold bytes; encode them as text (base64)")
    return _text(payload), "atomic"


def _plain(value: object) -> Any:
    if isinstance(value, Element):
        return tostring(value, encoding="unicode")
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_plain(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def check_name(value: object, name: str) -> str:
    """A source or a type. Raises `OptionError` where it is no text, or empty, or has blanks."""
    if not isinstance(value, str) or not value or any(one.isspace() for one in value):
        raise OptionError(f"{name} {value!r} cannot name one: a text, mostly a URI, without blanks", option=name)
    return value


def chunks(uris: Sequence[str], max_uris: int = MAX_URIS) -> list[tuple[str, ...]]:
    """The URIs in parts for one event each: 1,001 become 500, 500 and 1, and none become none."""
    texts: Sequence[object] = uris
    if isinstance(uris, str) or not all(isinstance(one, str) and one for one in texts):
        raise OptionError("uris must be a list of texts that are not empty", option="uris")
    if max_uris < 1:
        raise OptionError(f"max_uris must be at least 1, not {max_uris}", option="max_uris")
    return [tuple(uris[start : start + max_uris]) for start in range(0, len(uris), max_uris)]


def short(status: str, prefix: str = STATUS_PREFIX) -> str:
    """The status by its short name: `finished` for `http://…/status/finished`; one of another's own stays a URI."""
    name = status.removeprefix(prefix)
    return name if name in STATUSES else status


def long(status: str, prefix: str = STATUS_PREFIX) -> str:
    """The status as a URI; an executor's own stays as it is."""
    return f"{prefix}{status}" if status in STATUSES else status


def iso(moment: datetime) -> str:
    """A moment in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """A moment in ISO format; UTC unless it says otherwise. Raises `ValueError`."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
