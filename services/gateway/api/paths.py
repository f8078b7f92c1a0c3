"""Paths and methods as people type them: HEAD wherever GET is, and a trailing slash means nothing. Owns this leniency.

Hands on a copy of the scope; the server keeps its own and so sends no body to HEAD. Routes stay as they are declared.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class LenientPaths:
    """Wraps the application with its routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        inner = dict(scope)
        inner["path"] = scope["path"].rstrip("/") or "/"
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
        try:
            await self._app(inner, receive, send)
        finally:
            if "route" in inner:  # the edge names the request by it
                scope["route"] = inner["route"]
