"""A fake Hugging Face hub: the part its client needs to push and pull repositories with commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = dict[str, bytes]


class Hub:
    """repository -> [(commit, files)], oldest first"""

    def __init__(self) -> None:
        self.commits: dict[str, list[tuple[str, Files]]] = {}
        self.tokens: set[str] = set()
        self.url = ""

    def commit(self, repository: str, files: Files) -> str:
        own = self.commits.setdefault(repository, [])
        listing = json.dumps([len(own), sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items())])
        own.append((hashlib.sha1(listing.encode()).hexdigest(), files))
        return own[-1][0]

    def find(self, repository: str, revision: str) -> tuple[str, Files] | None:
        own = self.commits.get(repository, [])
        return next((c for c in reversed(own) if revision in ("main", c[0])), None)


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            pass

        def answer(self, status: int, body: Any, **headers: str) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content_type": "application/json", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            api = path[:2] == ["api", "models"]
            owner, name, *rest = path[2:] if api else path
            revision = rest[1] if len(rest) > 1 else "main"
            found = hub.find(f"{owner}/{name}", revision)
            if found is None:
                return self.answer(404, {}, x_error_code="RepoNotFound")
            commit, files = found
            if api and rest[:1] == ["tree"]:
                oids = {own: hashlib.sha1(data).hexdigest() for own, data in files.items()}
                return self.answer(200, [{"type": "file", "path": n, "size": len(files[n]), "oid": oids[n]} for n in files])
            if api:
                siblings = [{"rfilename": own, "size": len(data)} for own, data in files.items()]
                return self.answer(200, {"id": f"{owner}/{name}", "sha": commit, "siblings": siblings})
            data = files["/".join(rest[2:])]
            self.answer(200, data, etag=f'"{hashlib.sha256(data).hexdigest()}"', x_repo_commit=commit)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            hub.tokens.add(self.headers.get("authorization", ""))
            path = self.path.partition("?")[0].strip("/").split("/")
            if path[1:] == ["repos", "create"]:
                request = json.loads(body)
                repository = f"{request['organization']}/{request['name']}"
                if repository in hub.commits:
                    return self.answer(409, {"error": "there is one", "url": f"{hub.url}/{repository}"})
                hub.commit(repository, {".gitattributes": b""})
                return self.answer(200, {"url": f"{hub.url}/{repository}", "id": repository})
            if path[1:] == ["validate-yaml"]:
                return self.answer(200, {"errors": [], "warnings": []})
            repository = "/".join(path[2:4])
            if path[4] == "preupload":
                names = [file["path"] for file in json.loads(body)["files"]]
                plain = [{"path": n, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for n in names]
                return self.answer(200, {"files": plain})
            found = hub.find(repository, path[5])
            assert found is not None
            files = dict(found[1])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            commit = hub.commit(repository, files)
            self.answer(200, {"success": True, "commitOid": commit, "commitUrl": f"{hub.url}/{repository}/commit/{commit}"})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
