"""Before anything else: who asks, how much they send, and what is counted. Plain ASGI, since every turn passes here."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.routing import Match, Route

from tacit.serving.metrics import Metrics
from tacit.serving.refusals import STOPPING
from tacit.serving.settings import LOOPBACK, ServingSettings

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
HEARD_OUT = 1 << 24
"""bytes of a request that is too large which are still waited for"""
OPEN = ("/", "/health")
"""what may be read without a token: a page that knows nothing by itself, and whether somebody is here"""


class Way(Route):
    """A route that says which one it is, so that requests can be counted by it; Starlette's own say so only lately."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


class Guard:
    def __init__(self, app: App, token: str | None, settings: ServingSettings, metrics: Metrics) -> None:
        """Without a token only names of this machine are answered, and no page but ours: no other site's can ask."""
        self._app, self._token, self._metrics = app, token, metrics
        self._most, self._patience_s = settings.request_bytes, settings.answer_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, begun = time.perf_counter(), 500, False
        headers = {name.lower(): value for name, value in scope["headers"]}

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        try:
            if (refusal := self._refusal(scope, headers)) is not None:
                await answer(sending, *refusal)
                return
            try:
                async with asyncio.timeout(self._patience_s):
                    body = await self._whole(receive)
            except TimeoutError:
                await answer(sending, 408, f"the request did not arrive within {self._patience_s:g} s.")
                return
            if body is None:
                await answer(sending, 413, f"the request is too large; {self._most} bytes are read here at most.")
                return
            await self._app(scope, _again(body, receive), sending)
        except asyncio.CancelledError:  # its time is over: uvicorn cancels what is under way when it has waited long enough
            if begun:
                raise
            await answer(sending, 503, STOPPING)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.request(f"{scope['method']} {path}"[:80] if route else "other", status, time.perf_counter() - began)

    async def _whole(self, receive: Any) -> bytes | None:
        """The body; None where it is too large, whatever the headers said. Somewhat too large is read to its end and forgotten:
        most clients look for an answer only once they have sent everything."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self._most:
                pieces.append(piece)
            if not message.get("more_body") or size > HEARD_OUT:
                return b"".join(pieces) if size <= self._most else None

    def _refusal(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if _without_port(host) not in LOOPBACK:
                return 403, f"without a token only this machine is answered, and the request is for host {host[:80]!r}."
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and origin.partition("://")[2] != host:
                return 403, f"a page of {origin[:80]!r} asks, and without a token only this server's own page is answered."
        elif scope["path"] not in OPEN:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not given:
                return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
            if not hmac.compare_digest(given.strip(), self._token.encode()):
                return 401, "this token is not the right one."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > HEARD_OUT:
            return 413, f"the request has {length.decode('latin-1')[:20]} bytes; {self._most} are read here at most."
        return None


def _again(body: bytes, receive: Any) -> Any:
    """What was read, once more; then whatever comes next."""
    told = False

    async def receiving() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


async def answer(send: Any, status: int, message: str) -> None:
    body = json.dumps(problem(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):  # what is still on its way is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def problem(status: int, message: str) -> dict[str, Any]:
    """Every refusal has this shape, which is OpenAI's, so that its clients show the message."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _without_port(host: str) -> str:
    """
    >>> _without_port("[::1]:8765"), _without_port("localhost:80")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
