"""Passwords that are kept as bcrypt hashes, as `htpasswd -B` writes them.

A hash takes long to check, on purpose: 70 ms at a cost of 10. So it is checked in threads of its
own, never on the event loop. A right password is remembered for some minutes, as a keyed digest, so
a caller waits once. A flood of wrong ones can only fill a short queue, one address half of it; who
is remembered is not affected. A wrong password takes as long for each name, known or not.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

import bcrypt

from spark_queue.errors import OptionError, UsageError
from spark_queue.rest.errors import Overloaded

#: The highest cost: a check then takes a second.
MAX_COST = 14

#: The longest password that bcrypt can check (bytes).
MAX_PASSWORD = 72

#: How many checks may wait or run, in all and of one address.
MAX_CHECKS, MAX_CHECKS_OF_CALLER = 32, 16

#: How many right passwords are remembered, and for how long (s).
MAX_REMEMBERED_PASSWORDS, REMEMBERED_FOR = 1_000, 300.0

_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_BEGIN_OF_HASH = re.compile(r"\$2[a-z]?\$")
_OTHER_HASH = re.compile(r"\$[A-Za-z0-9-]{1,16}\$|\{[A-Za-z0-9-]{1,16}\}")

#: A hash of crypt(3) has nothing at its begin. It has 66 bits, so its end is one of 16 characters.
_CRYPT = re.compile(r"(?=.*[a-z])(?=.*[A-Z])[./0-9A-Za-z]{12}[.26AEIMQUYcgkosw]")

MAKE_ONE = "make a bcrypt hash with: htpasswd -nB -C 10 USER"


class CallerRole(StrEnum):
    """What a caller may do: look at everything, or also change it."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class PasswordTooLong(UsageError):
    """A password has more bytes than bcrypt can check."""


@dataclass(frozen=True, slots=True)
class HashedUser:
    """A user whose password is kept as a bcrypt hash."""

    name: str
    role: CallerRole
    hash: bytes = field(repr=False)

    @property
    def cost(self) -> int:
        """The cost of the hash: a check takes twice as long with each further one."""
        return int(self.hash[4:6])


def parse_hash(secret: str) -> bytes | None:
    """Return the bcrypt hash that a line has in place of a password; `None` for a clear password.

    Raises `OptionError` for a hash that cannot be checked: one of another kind, or too costly.
    """
    if not _BEGIN_OF_HASH.match(secret):
        if _OTHER_HASH.match(secret):
            raise OptionError(f"has a hash that is not bcrypt: {MAKE_ONE}", option="users")
        return None
    found = _HASH.fullmatch(secret)
    if found is None:
        raise OptionError(f"has a bcrypt hash that is damaged or of an unknown kind: {MAKE_ONE}", option="users")
    if not 4 <= (cost := int(found[1])) <= MAX_COST:
        raise OptionError(
            f"has a bcrypt hash with a cost of {cost}, but it must be from 4 to {MAX_COST}: each check would take "
            f"too long; {MAKE_ONE}",
            option="users",
        )
    return secret.encode()


def is_crypt_hash(secret: str) -> bool:
    """Return whether a secret looks like a hash of crypt(3), as `htpasswd -d` writes it."""
    return _CRYPT.fullmatch(secret) is not None


class PasswordChecker:
    """Checks passwords of users whose hashes are known; for any number of tasks and event loops."""

    def __init__(self, users: Sequence[HashedUser]) -> None:
        self._users = {one.name: one for one in users}
        self._cost = max((one.cost for one in users), default=4)
        # What an unknown name is compared with: hashes of nothing, one of each cost.
        self._nothing = {cost: bcrypt.gensalt(cost) + b"." * 31 for cost in range(4, self._cost + 1)}
        self._key = secrets.token_bytes(32)
        self._threads = ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 2)), "password")
        self._lock = threading.Lock()
        self._remembered: OrderedDict[bytes, tuple[CallerRole, float]] = OrderedDict()
        self._running: dict[bytes, Future[CallerRole | None]] = {}
        self._checks: Counter[str] = Counter()  # those that run or wait, by caller

    async def role_of(self, name: str, password: str, caller: str) -> CallerRole | None:
        """Return the role of a user with this password, `None` if there is none.

        `caller`: the address. Raises `PasswordTooLong`, and `Overloaded` if too many checks wait.
        """
        if not self._users:
            return None
        if len(password.encode()) > MAX_PASSWORD:
            raise PasswordTooLong(f"the password has more than {MAX_PASSWORD} bytes, which bcrypt cannot check")
        digest = hmac.new(self._key, f"{name}:{password}".encode(), hashlib.sha256).digest()
        with self._lock:
            if (role := self._recall(digest)) is not None:
                return role
            running = self._running.get(digest) or self._start(digest, name, password, caller)
        # One check answers all that ask the same, so a caller that leaves does not end it.
        return await asyncio.shield(asyncio.wrap_future(running))

    def _recall(self, digest: bytes) -> CallerRole | None:
        role, until = self._remembered.get(digest, (None, 0.0))
        if role is not None and time.monotonic() < until:
            self._remembered.move_to_end(digest)
            return role
        self._remembered.pop(digest, None)
        return None

    def _start(self, digest: bytes, name: str, password: str, caller: str) -> Future[CallerRole | None]:
        """Start a check. Its end is recorded by the thread that runs it."""
        if self._checks.total() >= MAX_CHECKS or self._checks[caller] >= MAX_CHECKS_OF_CALLER:
            raise Overloaded("too many passwords wait to be checked: try again")
        self._checks[caller] += 1
        running = self._threads.submit(self._check, digest, name, password, caller)
        self._running[digest] = running
        return running

    def _check(self, digest: bytes, name: str, password: str, caller: str) -> CallerRole | None:
        role = None
        try:
            role = self._compare(name, password.encode())
        finally:
            with self._lock:
                self._running.pop(digest, None)
                self._checks[caller] -= 1
                if not self._checks[caller]:
                    del self._checks[caller]
                if role is not None:
                    self._remembered[digest] = role, time.monotonic() + REMEMBERED_FOR
                    while len(self._remembered) > MAX_REMEMBERED_PASSWORDS:
                        self._remembered.popitem(last=False)
        return role

    def _compare(self, name: str, password: bytes) -> CallerRole | None:
        user = self._users.get(name)
        if user is None:
            bcrypt.checkpw(password, self._nothing[self._cost])
            return None
        if bcrypt.checkpw(password, user.hash):
            return user.role
        for cost in range(user.cost, self._cost):  # together with the check: as long as one of the highest cost
            bcrypt.checkpw(password, self._nothing[cost])
        return None
