"""Who may call: bearer tokens and users with passwords, and what each may do."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_queue.errors import OptionError, plural
from spark_queue.rest.guard.passwords import MAKE_ONE, CallerRole, HashedUser, is_crypt_hash, parse_hash

__all__ = ["CallerRole", "Credential", "Credentials", "role_of"]

#: Environment variables: a bearer token; `user:password`.
TOKEN_VARIABLE, USER_VARIABLE = "SPARK_QUEUE_REST_TOKEN", "SPARK_QUEUE_REST_USER"

log = logging.getLogger(__name__)


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
    """Bearer tokens, and users: `users` with clear passwords, `hashed` with bcrypt hashes.

    Without any, all programs on this machine may call.
    """

    tokens: tuple[Credential, ...] = ()
    users: tuple[Credential, ...] = ()
    hashed: tuple[HashedUser, ...] = ()

    @classmethod
    def from_texts(cls, tokens: Iterable[str] = (), users: Iterable[str] = ()) -> Credentials:
        """Return credentials from tokens and texts `user:password` or `user:bcrypt hash`.

        Each may begin with a role and a blank: `viewer TOKEN`. Without, its owner is an operator.
        Raises `OptionError` for an empty token, user or password. The same for a hash that is not
        bcrypt or costs too much, and for a second line of a user with a hash.
        """
        tokens, users = [one.strip() for one in tokens], [one.strip() for one in users]
        for number, token in enumerate(tokens, 1):
            if not _split_role(token)[1]:
                raise OptionError(f"token {number} is empty: give a long random text", option="token")
        clear, hashed, names = [], [], Counter[str]()
        for number, one in enumerate(users, 1):
            role, secret = _split_role(one)
            name, colon, password = secret.partition(":")
            if not name or not colon or not password:
                raise OptionError(f"user {number} must be user:password, with neither part empty", option="users")
            try:
                found = parse_hash(password)
            except OptionError as error:
                raise OptionError(f"user {number} {error}", option="users") from None
            names[name] += 1
            if found is None:
                clear.append(Credential.from_text(one))
            else:
                hashed.append(HashedUser(name, role, found))
        for user in hashed:
            if names[user.name] > 1:
                raise OptionError(f"user {user.name!r} has a hash and another line: leave one out", option="users")
        return cls(tuple(map(Credential.from_text, tokens)), tuple(clear), tuple(hashed))

    @classmethod
    def read(
        cls, environment: Mapping[str, str], token_file: Path | None = None, users_file: Path | None = None
    ) -> Credentials:
        """Read credentials from files, one per line, and from environment variables.

        Logs a warning if other users of this machine can read a file, or if it has clear passwords.
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
                    if kind == "users" and place.startswith("--"):
                        _warn_of_clear_passwords(lines, place)
                except OptionError as error:
                    raise OptionError(f"{place}: {error}", option=option) from None
        made = cls(
            sum((one.tokens for one in found), ()),
            sum((one.users for one in found), ()),
            sum((one.hashed for one in found), ()),
        )
        if len({one.name for one in made.hashed}) < len(made.hashed):
            raise OptionError(f"${USER_VARIABLE} has a user of --users-file: leave one out", option="users-file")
        return made

    def __bool__(self) -> bool:
        return bool(self.tokens or self.users or self.hashed)


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


def _warn_of_clear_passwords(lines: Iterable[str], place: str) -> None:
    """Log a warning if lines of users have clear passwords. Raises `OptionError` for crypt(3)."""
    clear = 0
    for number, line in enumerate(lines, 1):
        password = _split_role(line.strip())[1].partition(":")[2]
        if is_crypt_hash(password):
            raise OptionError(
                f"user {number} has a hash of crypt(3), or a clear password that looks like one: {MAKE_ONE}",
                option="users",
            )
        clear += parse_hash(password) is None
    if clear:
        log.warning("%s: %s in clear text; %s", place, plural(clear, "password"), MAKE_ONE)


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
