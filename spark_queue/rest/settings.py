"""What a server is told when it starts, checked before it does."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_queue.errors import OptionError, near
from spark_queue.events.executors import Executors
from spark_queue.events.files import Declared
from spark_queue.graph import Graph, Place
from spark_queue.graph_mistakes import checked
from spark_queue.options import QueueOptions
from spark_queue.store import usable

#: The variables of the environment that may have a bearer token, and `user:password`.
TOKEN_VARIABLE, USER_VARIABLE = "SPARK_QUEUE_REST_TOKEN", "SPARK_QUEUE_REST_USER"


@dataclass(frozen=True)
class Limits:
    """What one request may ask for: bytes of its body, messages, and ms of waiting."""

    body: int = 16 << 20
    messages: int = 10_000
    wait: int = 60_000


@dataclass(frozen=True)
class Credentials:
    """Who may call: bearer tokens, and users with passwords, of whom only digests are kept.

    With none of them anybody may who is on this machine.
    """

    tokens: tuple[bytes, ...] = field(default=(), repr=False)
    users: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, tokens: Iterable[str] = (), users: Iterable[str] = ()) -> Credentials:
        """From the texts: tokens, and `user:password`. Raises `OptionError` for one that is empty."""
        tokens, users = [one.strip() for one in tokens], [one.strip() for one in users]
        if not all(tokens):
            raise OptionError("a bearer token is empty: anybody would have it", option="token")
        for one in users:
            name, colon, password = one.partition(":")
            if not name or not colon or not password:
                raise OptionError("a user must be told as user:password, neither of them empty", option="users")
        return cls(tuple(map(_digest, tokens)), tuple(map(_digest, users)))

    @classmethod
    def read(
        cls, environment: Mapping[str, str], token_file: Path | None = None, users_file: Path | None = None
    ) -> Credentials:
        """From files, one a line, and from the variables of the environment, if they are set.

        Raises `OptionError` for a file that cannot be read or has none.
        """
        tokens = _lines(token_file, "token-file")
        users = _lines(users_file, "users-file")
        tokens += [environment[TOKEN_VARIABLE]] if TOKEN_VARIABLE in environment else []
        users += [environment[USER_VARIABLE]] if USER_VARIABLE in environment else []
        return cls.of(tokens, users)

    def __bool__(self) -> bool:
        return bool(self.tokens or self.users)

    def knows_token(self, token: str) -> bool:
        """Whether it is one of them; how long that takes tells nothing of them."""
        return _among(token, self.tokens)

    def knows_user(self, user_and_password: str) -> bool:
        """The same of `user:password`."""
        return _among(user_and_password, self.users)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _among(text: str, digests: Iterable[bytes]) -> bool:
    own = _digest(text)
    return sum(hmac.compare_digest(own, one) for one in digests) > 0  # each of them is looked at


def _lines(file: Path | None, option: str) -> list[str]:
    if file is None:
        return []
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--{option} {file}: {getattr(error, 'strerror', None) or error}", option=option) from None
    if not found:
        raise OptionError(f"--{option} {file}: it is empty, so nobody could call", option=option)
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server serves: the namespaces and exchanges of a graph, and the `events` of one queue (`ns/queue`).

    The options of a namespace hold here as they do for exchanges that read there: `reserveTimeout`, `maxTries`,
    `deadLetterQueue`, `history`. `declared`: executors and heartbeats of the events. Raises `OptionError` and
    `GraphError` for what cannot be meant; connects to nothing.
    """

    graph: Graph
    credentials: Credentials = Credentials()
    limits: Limits = Limits()
    events: str | None = None
    declared: Declared = field(default_factory=Declared)
    options: Mapping[str, QueueOptions] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", checked(self.graph))
        if not self.graph.namespaces:
            raise OptionError("there is nothing to serve: give --graph FILE, or --url NAME=URL", option="url")
        options = {}
        for name, one in self.graph.namespaces.items():
            raw = {**one.options, "url": one.url, "queue": "any"}
            try:
                options[name] = usable(QueueOptions.parse(raw, "stream"))
            except OptionError as error:
                raise OptionError(f"namespace {name!r}: {error}", **error.facts) from None
        object.__setattr__(self, "options", options)

        self.place_of_events()
        Executors(self.declared.executors).check()

    def place_of_events(self) -> Place | None:
        """Where the events are. Raises `OptionError` where that is no queue of a namespace."""
        if self.events is None:
            return None
        ns, slash, queue = self.events.partition("/")
        if not slash or not queue:
            raise OptionError(f"--events {self.events!r} must be NAMESPACE/QUEUE", option="events")
        if ns not in self.options:
            hint = near(ns, self.options)
            raise OptionError(f"--events {self.events!r}: there is no namespace {ns!r}{hint}", option="events")
        return Place(queue, ns)


def check_address(host: str, credentials: Credentials) -> None:
    """Raise `OptionError` where others than this machine could call, and need not say who they are."""
    if not credentials and not is_loopback(host):
        raise OptionError(
            f"--host {host} lets other machines call, and nobody would be asked who he is: give --token-file or "
            f"--users-file (or {TOKEN_VARIABLE} or {USER_VARIABLE}), or serve on 127.0.0.1",
            option="host",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address of that name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
