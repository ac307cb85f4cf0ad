"""The page at the root. It knows nothing by itself: it asks the server as any other client does, in the look of the report."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse

import tacit
from tacit.report.page import environment
from tacit.serving.guard import Way


def routes() -> list[Way]:
    async def root(request: Request) -> HTMLResponse:
        return HTMLResponse(page(), headers={"cache-control": "no-cache", "x-frame-options": "DENY"})

    return [Way("/", root)]


@cache
def page() -> str:
    """One file, nothing fetched but the server's own answers, no script but its own."""
    own, report = files("tacit.serving"), files("tacit.report")
    style = "\n".join(place.joinpath("page.css").read_text(encoding="utf-8") for place in (report, own))
    script = own.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.from_string(own.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(style=style, script=script, digest=digest, version=tacit.__version__)
