"""Answers kept on disk, so that nothing is asked twice: a run that was killed goes on without paying again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


class Answers:
    """question -> answer, one JSON line each, written at once. A line torn by a crash is asked again."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    self._known[entry["key"]] = entry["answer"]
                except (ValueError, KeyError, TypeError):
                    continue

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, answer: str) -> None:
        self._known[key] = answer
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        torn = self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps({"key": key, "answer": answer}, ensure_ascii=False) + "\n")


def key_of(*parts: object) -> str:
    """The key of a question: who is asked, what, and for which time."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()
