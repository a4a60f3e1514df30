"""The settings of a server, checked before it starts."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_queue.errors import OptionError, did_you_mean
from spark_queue.events.config import Declarations
from spark_queue.events.executors import Executors
from spark_queue.graph.model import Graph, Place
from spark_queue.graph.validation import check_graph
from spark_queue.options.queue_options import QueueOptions
from spark_queue.stores import resolve_options

#: Environment variables: a bearer token; `user:password`; NAME=URL of stores, separated by blanks.
TOKEN_VARIABLE, USER_VARIABLE = "SPARK_QUEUE_REST_TOKEN", "SPARK_QUEUE_REST_USER"
URLS_VARIABLE = "SPARK_QUEUE_REST_URLS"


@dataclass(frozen=True)
class Limits:
    """Limits of one request: bytes of its body, messages, and ms of waiting."""

    body: int = 16 << 20
    messages: int = 10_000
    wait: int = 60_000


@dataclass(frozen=True)
class Credentials:
    """Bearer tokens, and users with passwords, kept as digests.

    Without any, all programs on this machine may call.
    """

    tokens: tuple[bytes, ...] = field(default=(), repr=False)
    users: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def from_texts(cls, tokens: Iterable[str] = (), users: Iterable[str] = ()) -> Credentials:
        """Return credentials from tokens and texts `user:password`.

        Raises `OptionError` for an empty token, user or password.
        """
        tokens, users = [one.strip() for one in tokens], [one.strip() for one in users]
        for number, token in enumerate(tokens, 1):
            if not token:
                raise OptionError(f"token {number} is empty: give a long random text", option="token")
        for number, one in enumerate(users, 1):
            name, colon, password = one.partition(":")
            if not name or not colon or not password:
                raise OptionError(f"user {number} must be user:password, with neither part empty", option="users")
        return cls(tuple(map(_digest, tokens)), tuple(map(_digest, users)))

    @classmethod
    def read(
        cls, environment: Mapping[str, str], token_file: Path | None = None, users_file: Path | None = None
    ) -> Credentials:
        """Read credentials from files, one per line, and from environment variables.

        Raises `OptionError` for a file that cannot be read or is empty, and for an invalid line.
        """
        found = []
        for file, option, variable, kind in (
            (token_file, "token-file", TOKEN_VARIABLE, "tokens"),
            (users_file, "users-file", USER_VARIABLE, "users"),
        ):
            for place, lines in (
                (f"--{option} {file}", _read_lines(file, option)),
                (f"${variable}", [environment[variable]] if variable in environment else []),
            ):
                try:
                    found.append(cls.from_texts(**{kind: lines}))
                except OptionError as error:
                    raise OptionError(f"{place}: {error}", option=option) from None
        return cls(sum((one.tokens for one in found), ()), sum((one.users for one in found), ()))

    def __bool__(self) -> bool:
        return bool(self.tokens or self.users)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def is_one_of(text: str, digests: Iterable[bytes]) -> bool:
    """Return whether a text has one of these digests, in constant time."""
    own = _digest(text)
    return sum(hmac.compare_digest(own, one) for one in digests) > 0  # compares with all, in constant time


def _read_lines(file: Path | None, option: str) -> list[str]:
    if file is None:
        return []
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--{option} {file}: {getattr(error, 'strerror', None) or error}", option=option) from None
    if not found:
        raise OptionError(f"--{option} {file}: the file is empty; it must have at least one line", option=option)
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server. It serves the namespaces and exchanges of a graph.

    `events` names a queue of events to serve too (`ns/queue`); `declared` has its executors and
    heartbeats. The options of a namespace apply as in exchanges that read there: `reserveTimeout`,
    `maxTries`, `deadLetterQueue`, `history`. Raises `OptionError` or `GraphError` for invalid
    settings; connects to nothing.
    """

    graph: Graph
    credentials: Credentials = Credentials()
    limits: Limits = Limits()
    events: str | None = None
    declared: Declarations = field(default_factory=Declarations)
    options: Mapping[str, QueueOptions] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", check_graph(self.graph))
        if not self.graph.namespaces:
            raise OptionError(
                f"there is nothing to serve: give --graph FILE or --url NAME=URL (or ${URLS_VARIABLE})", option="url"
            )
        options = {}
        for name, one in self.graph.namespaces.items():
            raw = {**one.options, "url": one.url, "queue": "any"}
            try:
                options[name] = resolve_options(QueueOptions.parse(raw, "stream"))
            except OptionError as error:
                raise OptionError(f"namespace {name!r}: {error}", **error.facts) from None
        object.__setattr__(self, "options", options)

        self.place_of_events()
        Executors(self.declared.executors).check()

    def place_of_events(self) -> Place | None:
        """Return the queue of events, if there is one. Raises `OptionError` if it is invalid."""
        if self.events is None:
            return None
        ns, slash, queue = self.events.partition("/")
        if not slash or not queue:
            raise OptionError(f"--events {self.events!r} must be NAMESPACE/QUEUE", option="events")
        if ns not in self.options:
            hint = did_you_mean(ns, self.options)
            raise OptionError(f"--events {self.events!r}: there is no namespace {ns!r}{hint}", option="events")
        return Place(queue, ns)


def check_address(host: str, credentials: Credentials) -> None:
    """Raise `OptionError` if other machines could call without credentials."""
    if not credentials and not is_loopback(host):
        raise OptionError(
            f"--host {host} lets other machines call without credentials: give --token-file or --users-file "
            f"(or ${TOKEN_VARIABLE} or ${USER_VARIABLE}), or serve on 127.0.0.1",
            option="host",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address of that name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
