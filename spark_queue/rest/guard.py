"""Who may call, decided before anything is looked at.

With credentials, everybody has to show them. Without, the server is on a loopback address, where a page of any site
can reach it by the user's browser: so the name by which it is called has to be this machine's, and a browser must not
say that another site asks.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spark_queue.rest.problems import problem
from spark_queue.rest.settings import Credentials, is_loopback


class Guard:
    """Lets those pass who may."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app, self._credentials = app, credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            request = Request(scope)
            refused = self._asked_who(request) if self._credentials else _from_elsewhere(request)
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _asked_who(self, request: Request) -> Response | None:
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._credentials.knows_token(value.strip()):
            return None
        if kind.lower() == "basic" and self._credentials.knows_user(_basic(value.strip())):
            return None
        answer = problem(401, "Unauthorized", "say who you are, by a bearer token or by name and password")
        for way in (["Basic"] if self._credentials.users else []) + (["Bearer"] if self._credentials.tokens else []):
            answer.headers.append("WWW-Authenticate", f'{way} realm="spark_queue"')
        return answer


def _basic(value: str) -> str:
    """`user:password`, as HTTP has it; nobody's where it is malformed."""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _from_elsewhere(request: Request) -> Response | None:
    host = request.url.hostname or ""
    if not is_loopback(host):
        return problem(
            403, "Forbidden", f"without credentials this server is called 127.0.0.1 or localhost, not {host!r}"
        )
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host')}":
        return problem(403, "Forbidden", f"a page of {urlsplit(origin).hostname!r} may not call this server")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return problem(403, "Forbidden", "a page of another site may not call this server")
    return None
