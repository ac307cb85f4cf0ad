"""The server over HTTP: sessions, modules, metrics and health. Chat completions are in `chat.py`, the page in `page.py`."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

import tacit
from tacit.core.errors import TacitError
from tacit.core.types import Observation, Transition
from tacit.report.page import environment
from tacit.serving import chat
from tacit.serving.guard import App, Guard, Way, problem
from tacit.serving.requests import Refused, read
from tacit.serving.service import Service, play_turn, present_turn, weigh
from tacit.serving.sessions import Actions, Asked, Name, Number, Seed, Session, Temperature, Text, Turn

# The page at the root. It knows nothing by itself: it asks the server as any other client does, in the look of the report.


def _page_routes() -> list[Way]:
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


KNOWN = ("observation", "actions")
"""of a turn, to whoever has just told it"""


class Play(Asked):
    """A task of the module's own world."""

    split: Name = ""
    number: int = 0


class Begin(Asked):
    goal: Text = ""
    family: Name = ""
    skill: Name = ""
    world: Name = ""
    seed: Seed = 0
    temperature: Temperature | None = None
    data: dict[str, Any] = {}
    """what the world's tracker reads of a task beside its goal, where it does"""
    play: Play | None = None


class Observe(Asked):
    observation: Text
    actions: Actions = []
    turn: int | None = None
    done: bool = False
    success: bool = False
    score: Number = 0.0
    effective: bool = True
    label: Name = ""
    alternatives: Annotated[int, Field(ge=0, le=50)] = 0

    def transition(self) -> Transition:
        observation = Observation(self.observation, tuple(self.actions))
        return Transition(observation, self.done, self.success, self.score, self.effective, self.label)


class Step(Asked):
    action: Text | None = None
    """by hand; without one the module acts"""
    alternatives: Annotated[int, Field(ge=0, le=50)] = 0


class End(Asked):
    outcome: Literal["success", "failure", "abandoned"] = "abandoned"
    note: Name = ""


def make_app(service: Service, token: str | None) -> App:
    """`service` must be running while requests are answered."""
    routes = [*_about(service), *_sessions(service), *chat.routes(service), *_page_routes()]
    return Guard(Starlette(routes=routes, exception_handlers=_explained()), token, service.settings, service.metrics)


def _about(service: Service) -> list[Way]:
    async def health(request: Request) -> Response:
        status = "starting" if not service.ready else "ok" if service.gathering.alive else "the model's thread has ended"
        return JSONResponse({"status": status, "version": tacit.__version__}, 200 if status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def modules(request: Request) -> Response:
        return JSONResponse({"modules": [offer.to_json() for offer in service.catalogue.offers.values()]})

    async def refresh(request: Request) -> Response:
        return JSONResponse(vars(await service.refresh()))

    return [
        Way("/health", health),
        Way("/metrics", metrics),
        Way("/modules", modules),
        Way("/modules/refresh", refresh, methods=["POST"]),
    ]


def _sessions(service: Service) -> list[Way]:
    sessions = service.sessions

    async def begin(request: Request) -> Response:
        asked = await read(request, Begin)
        more: dict[str, Any] = {"skill": asked.skill, "world": asked.world, "family": asked.family}
        more |= {"split": asked.play.split, "number": asked.play.number} if asked.play else {"data": asked.data}
        if not asked.play and not asked.goal.strip():
            raise Refused(422, "a session needs a goal, or a task of the module's world to play (play).")
        if asked.play and (asked.goal or asked.data):
            raise Refused(422, "a task that is played here has its own goal and data; leave them out, or leave play out.")
        session = await service.begin(asked.goal, seed=asked.seed, temperature=asked.temperature, **more)
        return JSONResponse(session.to_json(turns=True), 201)

    async def listing(request: Request) -> Response:
        return JSONResponse({"sessions": [session.to_json() for session in sessions]})

    async def look(request: Request) -> Response:
        return JSONResponse(sessions.find(request.path_params["name"]).to_json(turns=True))

    async def observe(request: Request) -> Response:
        asked = await read(request, Observe)
        session = sessions.still_open(request.path_params["name"])
        turn = await sessions.see(session, asked.transition(), asked.turn)
        if turn is not None and asked.alternatives:
            await weigh(session, turn, asked.alternatives, service)
        return JSONResponse(_answer(session, turn))

    async def step(request: Request) -> Response:
        asked = await read(request, Step)
        session = sessions.still_open(request.path_params["name"])
        if asked.alternatives and session.world is not None:
            await weigh(session, present_turn(session), asked.alternatives, service)
        turn = await play_turn(session, sessions, asked.action)
        return JSONResponse(_answer(session, turn) | {"next": session.turns[-1].to_json() if session.open else None})

    async def end(request: Request) -> Response:
        asked = await read(request, End)
        session = sessions.still_open(request.path_params["name"])
        sessions.end(session, asked.outcome, asked.note)
        return JSONResponse(session.to_json())

    return [
        Way("/sessions/{name}/observe", observe, methods=["POST"]),  # first: it is what is asked for most
        Way("/sessions/{name}/step", step, methods=["POST"]),
        Way("/sessions/{name}/end", end, methods=["POST"]),
        Way("/sessions/{name}", look),
        Way("/sessions", begin, methods=["POST"]),
        Way("/sessions", listing),
    ]


def _answer(session: Session, turn: Turn | None) -> dict[str, Any]:
    told = {"session": session.name, "module": session.offer.name, "open": session.open, "outcome": session.outcome}
    final = {"final": session.final.text} if session.final is not None else {}
    did = {name: value for name, value in turn.to_json().items() if name not in KNOWN} if turn is not None else {"action": None}
    return told | did | final


def _explained() -> dict[Any, Any]:
    """Every refusal names what was wrong, in the same shape."""

    def told(status: int, message: str) -> JSONResponse:
        return JSONResponse(problem(status, message), status, {"retry-after": "1"} if status in (429, 503) else None)

    async def refused(request: Request, error: Refused) -> Response:
        return told(error.status, str(error))

    async def mistaken(request: Request, error: TacitError) -> Response:
        return told(422, str(error))

    async def http(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path[:100]}"
        words = {404: f"there is nothing at {where}.", 405: f"{where} is not something that can be asked."}
        return told(error.status_code, words.get(error.status_code, str(error.detail)))

    async def broken(request: Request, error: Exception) -> Response:
        return told(500, f"the server made a mistake ({type(error).__name__}); the session is as it was before.")

    return {Refused: refused, TacitError: mistaken, HTTPException: http, Exception: broken}
