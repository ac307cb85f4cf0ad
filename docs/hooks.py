"""mkdocs hook: links to files of the repository outside docs/ must exist; the site shows them as file names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = (DOCS / page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        text, target = match.group(1), match.group(2)
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS):
            return match.group(0)
        if not path.exists():
            raise SystemExit(f"docs/{page.file.src_uri}: dead link to {target}")
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(replace, markdown)
