"""One connection, before any request: how long its head may be, how long it may take, and how many there may be at once.

Who asks is known only when the head of a request is there, so whatever comes before that anybody can send.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tacit.serving.guard import problem
from tacit.serving.settings import ServingSettings

LONGEST_HEAD = 65_536
"""bytes"""
TOO_LARGE = f"the head of the request is too large; {LONGEST_HEAD} bytes are read here at most."
MOST = 2048
"""connections at once"""
OTHER_FILES = 64
"""of the files that a process may have open, so many are for anything but connections"""


def connections_for(settings: ServingSettings) -> type[HttpToolsProtocol]:
    class Bounded(Connection):
        patience_s, most = settings.answer_s, most_connections()

    return Bounded


def most_connections() -> int:
    """Where no file is left to open, a connection is neither taken nor refused, and the server does nothing but try."""
    try:
        import resource
    except ImportError:
        return MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files - OTHER_FILES))


class Connection(HttpToolsProtocol):
    patience_s = 60.0
    most = MOST

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head, self._heads, self._bytes, self._head = True, 0, 0, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(503, f"{self.most} connections are open, and no more may be; come back later.")
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        heads, in_head = self._heads, self._in_head
        super().data_received(data)
        if self._in_head and self._heads == heads and not self.transport.is_closing():
            self._bytes += len(data) if in_head else 0  # the end of a body is no head
            if self._bytes > LONGEST_HEAD:
                self._refuse(431, TOO_LARGE)
            elif self._deadline is None:
                self._wait()

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def _grow(self, size: int) -> None:
        """A head may come in one piece with its end, and is too large all the same."""
        self._head += size
        if self._head > LONGEST_HEAD:
            raise ValueError(TOO_LARGE)  # the parser reads no further, and the request is refused as one that it cannot read

    def send_400_response(self, msg: str) -> None:
        if self._head > LONGEST_HEAD:
            self._refuse(431, TOO_LARGE)
        else:
            self._refuse(400, "this is no request of HTTP/1.1 that can be read.")

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        self._in_head, self._bytes = False, 0
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(self.patience_s, self._too_late)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self._answering:
            self._wait()  # the next request has begun while this one is answered, and is read when it has been
        else:
            self._refuse(408, f"the head of the request did not arrive within {self.patience_s:g} s.")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        if not self._answering:
            body = json.dumps(problem(status, message))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()
