"""The HTTP API: sessions, modules, metrics and health, and the web page. Chat completions are in `chat.py`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
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
from tacit.serving.catalog import describe_module
from tacit.serving.guard import CLIENT, App, Guard, NamedRoute, make_error
from tacit.serving.requests import Actions, Name, Number, RequestBody, RequestError, Seed, Temperature, Text, read_body
from tacit.serving.service import Service, current_turn, play_turn, score_alternatives
from tacit.serving.sessions import Session, Turn


@cache
def render_page() -> str:
    """The web page as one file. It is an ordinary client of the HTTP API."""
    serving, report = files("tacit.serving"), files("tacit.report")
    style = "\n".join(folder.joinpath("page.css").read_text(encoding="utf-8") for folder in (report, serving))
    script = serving.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.from_string(serving.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(style=style, script=script, digest=digest, version=tacit.__version__)


SENT_BY_CLIENT = ("observation", "actions")  # fields of a turn that the answer to `observe` leaves out


class Play(RequestBody):
    """A task of the module's own world."""

    split: Name = ""
    number: int = 0


class Begin(RequestBody):
    goal: Text = ""
    family: Name = ""
    skill: Name = ""
    world: Name = ""
    seed: Seed = 0
    temperature: Temperature | None = None
    data: dict[str, Any] = {}  # task data that the world's tracker reads besides the goal
    play: Play | None = None


class Observe(RequestBody):
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


class Step(RequestBody):
    action: Text | None = None  # None: the module acts
    alternatives: Annotated[int, Field(ge=0, le=50)] = 0


class End(RequestBody):
    outcome: Literal["success", "failure", "abandoned"] = "abandoned"
    note: Name = ""


def make_app(service: Service, tokens: Mapping[str, str] | None) -> App:
    """`service` must be running while requests are answered. See `Guard` for `tokens`."""
    routes = [*_general_routes(service), *_session_routes(service), *chat.routes(service)]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys((TacitError, HTTPException, Exception), _answer_error))
    return Guard(app, tokens, service.settings, service.metrics)


def _general_routes(service: Service) -> list[NamedRoute]:
    async def page(request: Request) -> Response:
        return HTMLResponse(render_page(), headers={"cache-control": "no-cache", "x-frame-options": "DENY"})

    async def health(request: Request) -> Response:
        status = "starting" if not service.ready else "ok" if service.batching.alive else "the batching thread has ended"
        return JSONResponse({"status": status, "version": tacit.__version__}, 200 if status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def modules(request: Request) -> Response:
        return JSONResponse({"modules": [describe_module(m.module, m.world) for m in service.catalog.modules.values()]})

    async def refresh(request: Request) -> Response:
        return JSONResponse(vars(await service.catalog.refresh()))

    return [
        NamedRoute("/", page),
        NamedRoute("/health", health),
        NamedRoute("/metrics", metrics),
        NamedRoute("/modules", modules),
        NamedRoute("/modules/refresh", refresh, methods=["POST"]),
    ]


def _session_routes(service: Service) -> list[NamedRoute]:
    sessions = service.sessions

    async def begin(request: Request) -> Response:
        body = await read_body(request, Begin, service.run)
        arguments: dict[str, Any] = {"skill": body.skill, "world": body.world, "family": body.family}
        arguments |= {"split": body.play.split, "number": body.play.number} if body.play else {"data": body.data}
        if not body.play and not body.goal.strip():
            raise RequestError(422, "a session needs a goal, or a task of the module's world to play (play).")
        if body.play and (body.goal or body.data):
            raise RequestError(
                422, "a task of the module's world has its own goal and data; leave them out, or leave play out."
            )
        arguments |= {"seed": body.seed, "temperature": body.temperature, "client": request.scope[CLIENT]}
        session = await service.begin(body.goal, **arguments)
        return JSONResponse(session.to_json(turns=True), 201)

    async def show_all(request: Request) -> Response:
        return JSONResponse({"sessions": [session.to_json() for session in sessions.of(request.scope[CLIENT])]})

    async def show(request: Request) -> Response:
        session = sessions.find(request.path_params["name"], request.scope[CLIENT])
        return await service.run(lambda: JSONResponse(session.to_json(turns=True)))  # may be megabytes

    async def observe(request: Request) -> Response:
        body = await read_body(request, Observe, service.run)
        session = sessions.find_open(request.path_params["name"], request.scope[CLIENT])
        turn = await sessions.observe(session, body.transition(), body.turn)
        if turn is not None and body.alternatives:
            await score_alternatives(session, turn, body.alternatives, service)
        return JSONResponse(_turn_json(session, turn))

    async def step(request: Request) -> Response:
        body = await read_body(request, Step, service.run)
        session = sessions.find_open(request.path_params["name"], request.scope[CLIENT])
        if body.alternatives and session.world is not None:
            await score_alternatives(session, current_turn(session), body.alternatives, service)
        turn = await play_turn(session, sessions, body.action)
        return JSONResponse(_turn_json(session, turn) | {"next": session.turns[-1].to_json() if session.open else None})

    async def end(request: Request) -> Response:
        body = await read_body(request, End, service.run)
        session = sessions.find_open(request.path_params["name"], request.scope[CLIENT])
        sessions.end(session, body.outcome, body.note)
        return JSONResponse(session.to_json())

    return [
        NamedRoute("/sessions/{name}/observe", observe, methods=["POST"]),  # first, because it is the most frequent
        NamedRoute("/sessions/{name}/step", step, methods=["POST"]),
        NamedRoute("/sessions/{name}/end", end, methods=["POST"]),
        NamedRoute("/sessions/{name}", show),
        NamedRoute("/sessions", begin, methods=["POST"]),
        NamedRoute("/sessions", show_all),
    ]


def _turn_json(session: Session, turn: Turn | None) -> dict[str, Any]:
    response = {"session": session.name, "module": session.served.name, "open": session.open, "outcome": session.outcome}
    final = {"final": session.final.text} if session.final is not None else {}
    if turn is None:
        return response | {"action": None} | final
    return response | {name: value for name, value in turn.to_json().items() if name not in SENT_BY_CLIENT} | final


async def _answer_error(request: Request, error: Exception) -> Response:
    status, message = 500, f"internal error ({type(error).__name__}); the session is unchanged."
    if isinstance(error, TacitError):
        status, message = getattr(error, "status", 422), str(error)
    elif isinstance(error, HTTPException):
        where = f"{request.method} {request.url.path[:100]}"
        messages = {404: f"there is nothing at {where}.", 405: f"{where} is not supported."}
        status, message = error.status_code, messages.get(error.status_code, str(error.detail))
    return JSONResponse(make_error(status, message), status, {"retry-after": "1"} if status in (429, 503) else None)
