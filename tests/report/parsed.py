"""A strict HTML parser for tests: every element is closed in order, and the visible text is collected."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "input", "hr", "img"}


class Page(HTMLParser):
    """Raises if the page is not well formed. `text` is the visible text, `blocks` the JSON embedded for the script."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, Any] = {}
        self._pieces: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        self.text = " ".join("".join(self._pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> says something twice: {names}"
        self.elements.append((tag, dict(attrs)))
        self._pieces.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        self._pieces.append(" ")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            _, attributes = self.elements[-1]
            if attributes.get("type") == "application/json":
                self.blocks[str(attributes["id"])] = json.loads(data)
        elif not self.open or self.open[-1] != "style":
            self._pieces.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
