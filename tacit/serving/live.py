"""Serve live pages of runs to this machine (`tacit watch`). A page's ETag is the run's stamp; 304 means no change."""

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
from tacit.report.live import WatchedRun, build_feed, find_recordings, render_overview, render_recording
from tacit.report.page import Live, render
from tacit.report.run_page import render_run
from tacit.report.sections import MAX_TRAJECTORIES
from tacit.runs.directory import resume_command
from tacit.runs.trajectories import RECORDED
from tacit.serving.guard import App, Guard, Metrics, NamedRoute
from tacit.serving.settings import ServingSettings

HEADERS = {"cache-control": "no-cache", "x-frame-options": "DENY"}
CACHED_PAGES = 16
Render = Callable[[Live], str]


def make_app(runs: Sequence[WatchedRun], settings: ServingSettings, max_episodes: int = MAX_TRAJECTORIES) -> App:
    """`max_episodes` is the maximum number of episodes on a page."""
    links = [f"/runs/{number}" for number in range(len(runs))]
    pages = PageCache()

    def link_others(number: int) -> list[tuple[str, str]]:
        others = [(run.name, "" if i == number else links[i]) for i, run in enumerate(runs)]
        return [("side by side", "/"), *others] if len(runs) > 1 else []

    async def root(request: Request) -> Response:
        if len(runs) == 1:
            return RedirectResponse(links[0], 307, HEADERS)
        stamps = [run.get_stamp() for run in runs]
        stamp, written = "-".join(stamp for stamp, _ in stamps), max((w for _, w in stamps if w), default=None)
        return await pages.answer(request, stamp, written, "", lambda live: render_overview(runs, links, max_episodes, live))

    async def run(request: Request) -> Response:
        if (number := request.path_params["number"]) >= len(runs):
            return make_not_found(request)
        watched = runs[number]
        stamp, written = watched.get_stamp()
        render_page = lambda live: _render_run(watched, links[number], max_episodes, live, link_others(number))  # noqa: E731
        return await pages.answer(request, stamp, written, f"`{resume_command(watched.path)}` continues it", render_page)

    async def recording(request: Request) -> Response:
        number, name = request.path_params["number"], request.path_params["name"]
        recordings = find_recordings(runs[number].path) if number < len(runs) else ()
        files = {file.name.removesuffix(RECORDED): file for file in recordings}
        if name not in files:
            return make_not_found(request)
        watched = runs[number]
        beside, state = [(watched.name, links[number])], files[name].stat()
        render_page = lambda live: render_recording(watched.path, name, max_episodes, live, beside=beside)  # noqa: E731
        return await pages.answer(request, f"{state.st_mtime_ns}-{state.st_size}", None, "", render_page)

    async def missing(request: Request, error: Exception) -> Response:
        return make_not_found(request)

    run_path = "/runs/{number:int}"
    routes = [NamedRoute("/", root), NamedRoute(run_path, run), NamedRoute(f"{run_path}/episodes/{{name}}", recording)]
    return Guard(Starlette(routes=routes, exception_handlers={404: missing}), None, settings, Metrics())


class PageCache:
    """Renders pages on request, one at a time: matplotlib is not thread-safe, and a local run needs its cores."""

    def __init__(self) -> None:
        self._rendering = threading.Lock()
        self._pages: dict[str, tuple[str, str]] = {}

    async def answer(self, request: Request, stamp: str, written: float | None, hint: str, render_page: Render) -> Response:
        headers = HEADERS | {"etag": f'"{stamp}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        live = Live(_script(), stamp, written, hint)
        page = await asyncio.to_thread(self._get, request.url.path, live, render_page)
        return HTMLResponse(page, headers=headers)

    def _get(self, path: str, live: Live, render_page: Render) -> str:
        with self._rendering:
            stamp, page = self._pages.pop(path, ("", ""))
            if stamp != live.stamp:
                try:
                    page = render_page(live)
                except (TacitError, OSError) as error:  # damaged settings, or a file that has just been removed
                    message = f"{error} The page reloads when a file of the run changes."
                    page = _render_message("run", "Cannot be shown", message, live, [])
            self._pages[path] = live.stamp, page
            if len(self._pages) > CACHED_PAGES:
                del self._pages[next(iter(self._pages))]  # least recently used
            return page


def _render_run(run: WatchedRun, link: str, max_episodes: int, live: Live, beside: list[tuple[str, str]]) -> str:
    if not run.has_started:
        heading, message = run.describe_absence()
        return _render_message(run.name, heading, message, live, beside)
    notices: list[str] = []
    feed = build_feed(run.path, f"{link}/episodes", max_episodes, notices)
    return render_run(run.path, max_episodes, live, notices, feed=feed, beside=beside)


def _render_message(name: str, heading: str, message: str, live: Live | None, beside: list[tuple[str, str]]) -> str:
    return render("waiting", (), live, title=name, name=name, heading=heading, message=message, beside=beside)


def make_not_found(request: Request) -> Response:
    page = _render_message(
        "nothing here", "Nothing here", f"There is nothing at {request.url.path[:100]}.", None, [("back", "/")]
    )
    return HTMLResponse(page, 404, HEADERS)


@cache
def _script() -> str:
    return files("tacit.report").joinpath("live.js").read_text(encoding="utf-8")
