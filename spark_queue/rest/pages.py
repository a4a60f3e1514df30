"""The content security policy of the pages `/docs` and `/redoc`.

It keeps browsers from other hosts: ReDoc would load a logo from one.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGES = ("/docs", "/redoc")

#: The pages start with an inline script, and ReDoc searches in a web worker.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "worker-src blob:",
        "frame-ancestors 'none'",
    )
)


class ContentPolicyMiddleware:
    """Middleware that adds the content security policy to the pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the policy to the response if it is a page."""
        page = scope["type"] == "http" and scope["path"] in PAGES

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["content-security-policy"] = POLICY
            await send(message)

        await self._app(scope, receive, sending if page else send)
