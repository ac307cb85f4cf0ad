"""The whole page: one file, nothing fetched, no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

import tacit
from tacit.report.markup import Child, Markup, tag


def page(title: str, header: Child, notices: Sequence[str], sections: Sequence[tuple[str, str, Child]]) -> str:
    """`sections` are (anchor, heading, content); those without content are left out."""
    style, script = _text("page.css"), _text("page.js")
    shown = [(anchor, heading, content) for anchor, heading, content in sections if content]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # Whatever text finds its way into the page: nothing is fetched, and only the script with this digest runs.
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"tacit {tacit.__version__}"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )
    links = tag("nav", [tag("a", heading, href=f"#{anchor}") for anchor, heading, _ in shown], aria_label="sections")
    said = (
        tag("section", tag("h2", "Please note"), tag("ul", [tag("li", n) for n in notices]), cls="notices") if notices else None
    )
    body = tag(
        "body",
        tag("header", header, links),
        tag("main", said, [tag("section", tag("h2", h), content, id=anchor) for anchor, h, content in shown]),
        tag("footer", f"Written by tacit {tacit.__version__} report. This page is complete in itself and fetches nothing."),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def headline(numbers: Sequence[tuple[str, str, str]]) -> Markup | None:
    """The few numbers to see first: (label, number, what goes with it)."""
    if not numbers:
        return None
    return tag("dl", [tag("div", tag("dt", n), tag("dd", tag("b", v), tag("span", w))) for n, v, w in numbers], cls="headline")


def _text(name: str) -> str:
    return files("tacit.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
