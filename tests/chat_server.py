"""A local server with the OpenAI interface that answers from a script and records its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""status, body (JSON, raw bytes, or an iterator of bytes sent one by one), headers; status 0 closes the connection"""


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.busy = self.busiest = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append({"path": self.path, **body})
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        try:
            status, answer, *more = self.server.reply(body)
        finally:
            with self.server.lock:
                self.server.busy -= 1
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(answer, Iterator):
            self.send_response(status)
            self.send_header("Content-Length", "5000")
            self.end_headers()
            with suppress(ConnectionError):
                for part in answer:
                    self.wfile.write(part)
            return
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in (more[0] if more else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[ChatServer]:
    server = ChatServer(reply)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def says(text: str | None, prompt_tokens: int = 7, completion_tokens: int = 3, finish: str = "stop") -> dict[str, Any]:
    """A chat completion."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}], "usage": usage}
