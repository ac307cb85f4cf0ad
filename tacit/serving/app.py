"""The server over HTTP: sessions, modules, metrics and health. Chat completions are in `chat.py`, the page in `page.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

import tacit
from tacit.core.errors import TacitError
from tacit.core.types import Observation, Transition
from tacit.serving import chat, hosting, page
from tacit.serving.alternatives import weigh
from tacit.serving.asked import Name, Number, Seed, Temperature, Text
from tacit.serving.guard import App, Guard, problem
from tacit.serving.refusals import Refused
from tacit.serving.service import Service
from tacit.serving.session import Session, Turn

KNOWN = ("observation", "actions")
"""of a turn, to whoever has just told it"""


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


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
    actions: Annotated[list[Text], Field(max_length=1000)] = []
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


BY_ITSELF, GIVEN_UP = Step(), End()


def make_app(service: Service, token: str | None) -> App:
    """`service` must be running while requests are answered."""
    app = FastAPI(title="Tacit", version=tacit.__version__, docs_url=None, redoc_url=None)
    _explain_errors(app)
    _sessions(app, service)
    chat.add_routes(app, service)
    page.add_routes(app)

    @app.get("/health")
    async def health() -> Response:
        status = "starting" if not service.ready else "ok" if service.gathering.alive else "the model's thread has ended"
        return JSONResponse({"status": status, "version": tacit.__version__}, 200 if status == "ok" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/modules")
    async def modules() -> Response:
        return JSONResponse({"modules": [offer.to_json() for offer in service.catalogue.offers.values()]})

    @app.post("/modules/refresh")
    async def refresh() -> Response:
        return JSONResponse(vars(await service.refresh()))

    return Guard(app, token, service.settings, service.metrics)


def _sessions(app: FastAPI, service: Service) -> None:
    sessions = service.sessions

    @app.post("/sessions")
    async def begin(asked: Begin) -> Response:
        more: dict[str, Any] = {"skill": asked.skill, "world": asked.world, "family": asked.family}
        more |= {"split": asked.play.split, "number": asked.play.number} if asked.play else {"data": asked.data}
        if not asked.play and not asked.goal.strip():
            raise Refused(422, "a session needs a goal, or a task of the module's world to play (play).")
        session = await service.begin(asked.goal, seed=asked.seed, temperature=asked.temperature, **more)
        return JSONResponse(session.to_json(turns=True), 201)

    @app.get("/sessions")
    async def listing() -> Response:
        return JSONResponse({"sessions": [session.to_json() for session in sessions]})

    @app.get("/sessions/{name}")
    async def look(name: str) -> Response:
        return JSONResponse(sessions.find(name).to_json(turns=True))

    @app.post("/sessions/{name}/observe")
    async def observe(name: str, asked: Observe) -> Response:
        session = sessions.still_open(name)
        turn = await sessions.see(session, asked.transition(), asked.turn)
        if turn is not None and asked.alternatives:
            await weigh(session, turn, asked.alternatives, service)
        return JSONResponse(_answer(session, turn))

    @app.post("/sessions/{name}/step")
    async def step(name: str, asked: Annotated[Step, Body()] = BY_ITSELF) -> Response:
        session = sessions.still_open(name)
        if asked.alternatives and session.world is not None:
            await weigh(session, hosting.present_turn(session), asked.alternatives, service)
        turn = await hosting.step(session, sessions, asked.action)
        return JSONResponse(_answer(session, turn) | {"next": session.turns[-1].to_json() if session.open else None})

    @app.post("/sessions/{name}/end")
    async def end(name: str, asked: Annotated[End, Body()] = GIVEN_UP) -> Response:
        session = sessions.still_open(name)
        sessions.end(session, asked.outcome, asked.note)
        return JSONResponse(session.to_json())


def _answer(session: Session, turn: Turn | None) -> dict[str, Any]:
    told = {"session": session.name, "module": session.offer.name, "open": session.open, "outcome": session.outcome}
    final = {"final": session.final.text} if session.final is not None else {}
    did = {name: value for name, value in turn.to_json().items() if name not in KNOWN} if turn is not None else {"action": None}
    return told | did | final


def _mistake(found: Mapping[str, Any]) -> str:
    if found["type"] == "json_invalid":
        return f"it is no JSON (at character {found['loc'][-1]})"
    return f"{'.'.join(str(part) for part in found['loc'][1:]) or 'the body'}: {found['msg']}"


def _explain_errors(app: FastAPI) -> None:
    """Every refusal names what was wrong, in the same shape."""

    def told(status: int, message: str) -> JSONResponse:
        return JSONResponse(problem(status, message), status, {"retry-after": "1"} if status in (429, 503) else None)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return told(error.status, str(error))

    @app.exception_handler(TacitError)
    async def mistaken(request: Request, error: TacitError) -> JSONResponse:
        return told(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def misread(request: Request, error: RequestValidationError) -> JSONResponse:
        return told(422, f"the request cannot be read: {'; '.join(map(_mistake, error.errors()[:5]))}.")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        where = f"{request.method} {request.url.path[:100]}"
        words = {404: f"there is nothing at {where}.", 405: f"{where} is not something that can be asked."}
        return told(error.status_code, words.get(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return told(500, f"the server made a mistake ({type(error).__name__}); the session is as it was before.")
