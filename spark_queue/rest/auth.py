"""Authentication, before anything else.

If the server has credentials, every request needs them. If not, it listens on a loopback address,
which any web page can reach through the user's browser. So the Host of a request must be this
machine, and its Origin must not be another site. `/health` and `/ready` need no credentials.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_queue.rest.errors import problem_response
from spark_queue.rest.settings import Credentials, is_loopback, is_one_of

#: Paths that answer without credentials. They reveal nothing but a status.
OPEN_PATHS = frozenset({"/health", "/ready"})

_SCHEMES = {"Basic": "a user and a password (Basic)", "Bearer": "a token (Bearer)"}


class AuthMiddleware:
    """Middleware that refuses requests without credentials, or from web pages of other sites."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app, self._credentials = app, credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and not (scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")):
            request = Request(scope)
            refused = self._refuse_without_credentials(request) if self._credentials else _refuse_other_sites(request)
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse_without_credentials(self, request: Request) -> Response | None:
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_one_of(value.strip(), self._credentials.tokens):
            return None
        if kind.lower() == "basic" and is_one_of(_decode_basic(value.strip()), self._credentials.users):
            return None
        ways = (["Basic"] if self._credentials.users else []) + (["Bearer"] if self._credentials.tokens else [])
        wanted = " or ".join(_SCHEMES[way] for way in ways)
        answer = problem_response(
            401, "Unauthorized", f"credentials are missing or wrong: send the header Authorization with {wanted}"
        )
        for way in ways:
            answer.headers.append("WWW-Authenticate", f'{way} realm="spark_queue"')
        return answer


def _decode_basic(value: str) -> str:
    """Decode `user:password`; return an empty text, which no user has, if it is malformed."""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _refuse_other_sites(request: Request) -> Response | None:
    host = request.url.hostname or ""
    if not is_loopback(host):
        return problem_response(
            403,
            "Forbidden",
            f"header Host is {host!r}, but without credentials this server answers to localhost and 127.0.0.1 only: "
            "use one of these, or start it with --token-file or --users-file",
        )
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host')}":
        return problem_response(
            403, "Forbidden", f"a page of {urlsplit(origin).hostname or origin!r} may not call this server"
        )
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return problem_response(403, "Forbidden", "a page of another site may not call this server")
    return None
