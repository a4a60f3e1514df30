"""Who may call: bearer tokens and users with passwords, and what each may do."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from spark_queue.errors import OptionError

#: Environment variables: a bearer token; `user:password`.
TOKEN_VARIABLE, USER_VARIABLE = "SPARK_QUEUE_REST_TOKEN", "SPARK_QUEUE_REST_USER"

log = logging.getLogger(__name__)


class CallerRole(StrEnum):
    """What a caller may do: look at everything, or also change it."""

    VIEWER = "viewer"
    OPERATOR = "operator"


_ROLES = {role.value: role for role in CallerRole}


@dataclass(frozen=True, slots=True)
class Credential:
    """A token or `user:password`, kept as a digest, and the role of its owner."""

    digest: bytes = field(repr=False)
    role: CallerRole

    @classmethod
    def from_text(cls, text: str) -> Credential:
        """Return the credential of a line: a secret, or a role, a blank and a secret."""
        role, secret = _split_role(text)
        return cls(_digest(secret), role)


def _split_role(text: str) -> tuple[CallerRole, str]:
    """Return the role and the secret of a line; an operator's may have no role."""
    word, _, secret = text.partition(" ")
    return (_ROLES[word], secret.strip()) if word in _ROLES else (CallerRole.OPERATOR, text)


@dataclass(frozen=True)
class Credentials:
    """Bearer tokens, and users with passwords.

    Without any, all programs on this machine may call.
    """

    tokens: tuple[Credential, ...] = ()
    users: tuple[Credential, ...] = ()

    @classmethod
    def from_texts(cls, tokens: Iterable[str] = (), users: Iterable[str] = ()) -> Credentials:
        """Return credentials from tokens and texts `user:password`.

        Each may begin with a role and a blank: `viewer TOKEN`. Without, its owner is an operator.
        Raises `OptionError` for an empty token, user or password.
        """
        tokens, users = [one.strip() for one in tokens], [one.strip() for one in users]
        for number, token in enumerate(tokens, 1):
            if not _split_role(token)[1]:
                raise OptionError(f"token {number} is empty: give a long random text", option="token")
        for number, one in enumerate(users, 1):
            name, colon, password = _split_role(one)[1].partition(":")
            if not name or not colon or not password:
                raise OptionError(f"user {number} must be user:password, with neither part empty", option="users")
        return cls(tuple(map(Credential.from_text, tokens)), tuple(map(Credential.from_text, users)))

    @classmethod
    def read(
        cls, environment: Mapping[str, str], token_file: Path | None = None, users_file: Path | None = None
    ) -> Credentials:
        """Read credentials from files, one per line, and from environment variables.

        Logs a warning if other users of this machine can read a file. Raises `OptionError` for a
        file that cannot be read or is empty, and for an invalid line.
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


def role_of(secret: str, credentials: Iterable[Credential]) -> CallerRole | None:
    """Return the role of the owner of a token or `user:password`, `None` if there is none.

    It takes as long for each secret.
    """
    own, found = _digest(secret), None
    for one in credentials:
        if hmac.compare_digest(own, one.digest):
            found = one.role
    return found


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _read_lines(file: Path | None, option: str) -> list[str]:
    if file is None:
        return []
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--{option} {file}: {getattr(error, 'strerror', None) or error}", option=option) from None
    if not found:
        raise OptionError(f"--{option} {file}: the file is empty; it must have at least one line", option=option)
    if mode & (stat.S_IRGRP | stat.S_IROTH) and stat.S_ISREG(mode):
        log.warning("--%s %s: other users of this machine can read it; type: chmod 600 %s", option, file, file)
    return found
