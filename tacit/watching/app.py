"""Pages over HTTP, for whoever sits at this machine. Asked with a page's stamp, the server says whether it has a newer one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tacit.core.errors import TacitError
from tacit.report.page import Live, render
from tacit.report.run_page import run_page
from tacit.report.viewer import MOST_TRAJECTORIES
from tacit.serving.guard import App, Guard, Metrics, NamedRoute
from tacit.serving.settings import ServingSettings
from tacit.watching.pages import Watched, feed_of, overview_page, recording_page

HEADERS = {"cache-control": "no-cache", "x-frame-options": "DENY"}
KEPT = 16
"""pages that need not be written again while nothing is new"""
Write = Callable[[Live], str]


def make_app(runs: Sequence[Watched], settings: ServingSettings, most: int = MOST_TRAJECTORIES) -> App:
    """`most` is how many episodes a page has at most."""
    links = [f"/runs/{number}" for number in range(len(runs))]
    pages = Pages()

    def beside(number: int) -> list[tuple[str, str]]:
        others = [(run.name, "" if i == number else links[i]) for i, run in enumerate(runs)]
        return [("side by side", "/"), *others] if len(runs) > 1 else []

    def asked(number: int) -> Watched | None:
        return runs[number] if 0 <= number < len(runs) else None

    async def root(request: Request) -> Response:
        if len(runs) == 1:
            return RedirectResponse(links[0], 307, HEADERS)
        looks = [run.look() for run in runs]
        stamp, written = "-".join(stamp for stamp, _ in looks), max((w for _, w in looks if w), default=None)
        return await pages.answer(request, stamp, written, "", lambda live: overview_page(runs, links, most, live))

    async def run(request: Request) -> Response:
        number = request.path_params["number"]
        if (watched := asked(number)) is None:
            return nothing_here(request)
        stamp, written = watched.look()
        write = lambda live: _run(watched, links[number], most, live, beside(number))  # noqa: E731
        return await pages.answer(request, stamp, written, f"`tacit train --resume {watched.path}` continues it", write)

    async def recording(request: Request) -> Response:
        number, name = request.path_params["number"], request.path_params["name"]
        watched = asked(number)
        if watched is None or not (watched.path / "trajectories" / f"{name}.jsonl.gz").is_file():
            return nothing_here(request)
        around = [(watched.name, links[number])]
        state = (watched.path / "trajectories" / f"{name}.jsonl.gz").stat()
        write = lambda live: recording_page(watched.path, name, most, live, beside=around)  # noqa: E731
        return await pages.answer(request, f"{state.st_mtime_ns}-{state.st_size}", None, "", write)

    async def missing(request: Request, error: Exception) -> Response:
        return nothing_here(request)

    routes = [NamedRoute("/", root), NamedRoute("/runs/{number:int}", run), NamedRoute("/runs/{number:int}/episodes/{name}", recording)]
    return Guard(Starlette(routes=routes, exception_handlers={404: missing}), None, settings, Metrics())


class Pages:
    """Written when asked for and new, one at a time: matplotlib draws for one, and a run that trains here needs its cores."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._kept: dict[str, tuple[str, str]] = {}

    async def answer(self, request: Request, stamp: str, written: float | None, hint: str, write: Write) -> Response:
        headers = HEADERS | {"etag": f'"{stamp}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        live = Live(_script(), stamp, written, hint)
        page = await asyncio.to_thread(self._written, request.url.path, live, write)
        return HTMLResponse(page, headers=headers)

    def _written(self, path: str, live: Live, write: Write) -> str:
        with self._writing:
            stamp, page = self._kept.pop(path, ("", ""))
            if stamp != live.stamp:
                page = self._as_far_as_possible(live, write)
            self._kept[path] = live.stamp, page
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]  # the one that nobody has asked for longest
            return page

    @staticmethod
    def _as_far_as_possible(live: Live, write: Write) -> str:
        try:
            return write(live)
        except (TacitError, OSError) as error:  # settings that are damaged; a file that went away while it was read
            return _said("run", "Cannot be shown", f"{error} It is looked for again when something is written.", live, [])


def _run(run: Watched, link: str, most: int, live: Live, beside: list[tuple[str, str]]) -> str:
    if not run.begun:
        heading, message = run.absence()
        return _said(run.name, heading, message, live, beside)
    notices: list[str] = []
    feed = feed_of(run.path, f"{link}/episodes", most, notices)
    return run_page(run.path, most, live, notices, feed=feed, beside=beside)


def _said(name: str, heading: str, message: str, live: Live | None, beside: list[tuple[str, str]]) -> str:
    return render("waiting", (), live, title=name, name=name, heading=heading, message=message, beside=beside)


def nothing_here(request: Request) -> Response:
    page = _said("nothing here", "Nothing here", f"There is nothing at {request.url.path[:100]}.", None, [("back", "/")])
    return HTMLResponse(page, 404, HEADERS)


@cache
def _script() -> str:
    return files("tacit.watching").joinpath("watch.js").read_text(encoding="utf-8")
