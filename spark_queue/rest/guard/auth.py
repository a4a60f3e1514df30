"""Authentication, before anything else.

If the server has credentials, every request needs them, except for `/health` and `/ready`. If not,
it listens on a loopback address, which any web page can reach through the user's browser. A browser
also sends the password of a user with the requests of any page. So a request without credentials
must have this machine as its Host. And only a request with a token may come from a page of another
site.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_queue.rest.errors import Overloaded, problem_response
from spark_queue.rest.guard.address import is_loopback
from spark_queue.rest.guard.credentials import CallerRole, Credentials, role_of
from spark_queue.rest.guard.passwords import PasswordChecker, PasswordTooLong

#: Paths that answer without credentials. They reveal nothing but a status.
OPEN_PATHS = frozenset({"/health", "/ready"})

_SCHEMES = {"Basic": "a user and a password (Basic)", "Bearer": "a token (Bearer)"}

#: The longest part of a header in an error text.
_MAX_SHOWN = 100


class AuthMiddleware:
    """Middleware that refuses requests without credentials, or from web pages of other sites.

    `request.state.role` is the role of the caller from here on.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials, open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app, self._credentials, self._open_paths = app, credentials, open_paths
        self._passwords = PasswordChecker(credentials.hashed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            request = Request(scope)
            request.state.role = CallerRole.VIEWER
            if not (scope["path"] in self._open_paths and scope["method"] in ("GET", "HEAD")):
                refused = await self._check(request)
                if refused is not None:
                    await refused(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _check(self, request: Request) -> Response | None:
        """Return the refusal of a request; else set its role, and return `None`."""
        if not self._credentials:
            request.state.role = CallerRole.OPERATOR
            return _refuse_other_hosts(request) or _refuse_other_sites(request)
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        kind, value, role = kind.lower(), value.strip(), None
        if kind == "bearer":
            role = role_of(value, self._credentials.tokens)
        elif kind == "basic":
            try:
                role = await self._role_of_user(_decode_basic(value), request)
            except PasswordTooLong as error:
                return self._refuse(str(error))
            except Overloaded as error:
                return problem_response(503, "Overloaded", str(error))
        if role is None:
            return self._refuse()
        request.state.role = role
        return _refuse_other_sites(request) if kind == "basic" else None

    async def _role_of_user(self, secret: str, request: Request) -> CallerRole | None:
        role = role_of(secret, self._credentials.users)
        name, colon, password = secret.partition(":")
        if role is not None or not colon:
            return role
        return await self._passwords.role_of(name, password, request.client.host if request.client else "")

    def _refuse(self, reason: str = "credentials are missing or wrong") -> Response:
        with_users = self._credentials.users or self._credentials.hashed
        ways = (["Basic"] if with_users else []) + (["Bearer"] if self._credentials.tokens else [])
        wanted = " or ".join(_SCHEMES[way] for way in ways)
        answer = problem_response(401, "Unauthorized", f"{reason}: send the header Authorization with {wanted}")
        for way in ways:
            answer.headers.append("WWW-Authenticate", f'{way} realm="spark_queue"')
        return answer


def _decode_basic(value: str) -> str:
    """Decode `user:password`; return an empty text, which no user has, if it is malformed."""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _refuse_other_hosts(request: Request) -> Response | None:
    sent = request.headers.get("host", "")
    try:
        host = urlsplit(f"//{sent}").hostname or ""
    except ValueError:
        host = sent
    if is_loopback(host):
        return None
    return _forbidden(
        f"header Host is {host[:_MAX_SHOWN]!r}, but without credentials this server answers to localhost and "
        "127.0.0.1 only: use one of these, or start it with --token-file or --users-file"
    )


def _refuse_other_sites(request: Request) -> Response | None:
    origin = request.headers.get("origin")
    if origin is not None and not _is_own_site(origin, request.headers.get("host", "")):
        return _forbidden(f"a page of {origin[:_MAX_SHOWN]!r} may not call this server")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return _forbidden("a page of another site may not call this server")
    return None


def _is_own_site(origin: str, host: str) -> bool:
    """Return whether a header Origin names this host. A proxy may have changed the scheme."""
    try:
        found = urlsplit(origin)
    except ValueError:  # no URL
        return False
    return found.scheme in ("http", "https") and found.netloc.lower() == host.lower()


def _forbidden(detail: str) -> Response:
    return problem_response(403, "Forbidden", detail)
