"""Sessions: one episode each, strictly apart, in order, and remembered while they can be of use.

A session is begun with a goal, told what is seen, answered with an action, told what came of it, and so on to its end. A turn
has a number; whoever did not get its answer asks for the same number again and gets the same answer.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode
from tacit.core.protocols import Request
from tacit.core.types import Observation, Task, Transition
from tacit.modules.agent import Episode, playing_sampling
from tacit.serving.batching import Gathering
from tacit.serving.catalogue import Catalogue, Offer
from tacit.serving.guard import Metrics
from tacit.serving.requests import Refused, gone, not_found, out_of_turn, too_many, unusable
from tacit.serving.settings import ServingSettings

# One session: an episode, its turns so far, and how it ended.

MODULE, HAND = "module", "hand"
"""who acted"""


@dataclass
class Turn:
    """One turn, as it can be looked at."""

    number: int
    observation: Observation
    prompt: str
    state: str
    """the tracker's block in the prompt; empty where the module reads none"""
    action: str = ""
    acted: bool = False
    by: str = MODULE
    wrote: str = ""
    effective: bool = True
    """the world did something with it"""
    valid: bool = True
    """what was written is an action in the module's format"""
    probability: float | None = None
    """of exactly what was written, at the temperature it was drawn at"""
    prompt_tokens: int = 0
    tokens: int = 0
    alternatives: list[dict[str, Any]] | None = None
    """the likeliest actions and their probabilities, where they were asked for"""
    signals: dict[str, float] = field(default_factory=dict)
    """what the tracker said of the action once its result was known"""

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in ("number", "observation", "action")}
        seen = {"observation": self.observation.text, "actions": list(self.observation.actions)}
        return {"turn": self.number, "action": self.action, **seen, **told}


class Session:
    def __init__(self, name: str, offer: Offer, episode: Episode, release: Callable[[], None]) -> None:
        self.name, self.offer, self.episode, self._release = name, offer, episode, release
        self.turns: list[Turn] = []
        self.outcome = ""
        """empty while it is open"""
        self.note = ""
        self.began = self.touched = time.time()
        self.final: Observation | None = None
        """what was seen at the end"""
        self.request: Request | None = None
        """of the present turn"""
        self.acting = False
        """an answer is under way"""
        self.world: Any = None
        """its world, where it is played here (`hosting.Hosted`)"""

    @property
    def open(self) -> bool:
        return not self.outcome

    @property
    def unanswered(self) -> bool:
        """it has acted, and what came of it is not known; where it is and no turn has begun since, what was seen could not be
        read, and something else may be told"""
        return self.episode.action is not None

    def close(self, outcome: str, note: str = "") -> None:
        if self.open:
            self.outcome, self.note = outcome, note
            self._release()

    def to_json(self, turns: bool = False) -> dict[str, Any]:
        task, module = self.episode.task, self.offer.module
        told: dict[str, Any] = {
            "session": self.name, "module": self.offer.name, "digest": module.digest, "goal": task.goal, "family": task.family,
            "task": task.id, "seed": self.episode.seed, "temperature": self.episode.sampling.temperature,
            "open": self.open, "outcome": self.outcome, "note": self.note, "hosted": self.world is not None,
            "turn": len(self.turns), "began": self.began, "touched": self.touched,
        }  # fmt: skip
        if turns:
            told["turns"] = [turn.to_json() for turn in self.turns]
            told["final"] = self.final.text if self.final else ""
        return told


Answer = TypeVar("Answer")


class Sessions:
    def __init__(self, settings: ServingSettings, catalogue: Catalogue, gathering: Gathering, metrics: Metrics) -> None:
        self._settings, self._catalogue, self._gathering, self._metrics = settings, catalogue, gathering, metrics
        self._life = secrets.token_hex(4)
        """of this server: a name that another one gave is known as such"""
        self._open: dict[str, Session] = {}
        self._over: OrderedDict[str, Session] = OrderedDict()

    def __iter__(self) -> Iterator[Session]:
        """Open ones first, the newest of those that are over next."""
        yield from self._open.values()
        yield from reversed(self._over.values())

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, offer: Offer, task: Task, seed: int, temperature: float | None) -> Session:
        if len(self._open) >= self._settings.sessions:
            raise too_many(f"{len(self._open)} sessions are open, and no more may be: end one, or come back later.")
        sampling = playing_sampling(offer.module, offer.context, temperature)
        try:
            episode = Episode(offer.module, offer.context, task, sampling, seed)
        except TacitError:
            raise
        except Exception as error:  # a tracker or wording may be anybody's, and find the goal hard to read
            raise unusable(f"module {offer.name} cannot begin with this goal: {type(error).__name__}: {error}") from error
        session = Session(f"{self._life}-{secrets.token_urlsafe(12)}", offer, episode, self._catalogue.hold(offer))
        self._open[session.name] = session
        self._metrics.begun(offer.name)
        return session

    def find(self, name: str) -> Session:
        """Open, or over and still remembered."""
        session = self._open.get(name) or self._over.get(name)
        if session is not None:
            return session
        life, dash, _ = name.partition("-")
        if dash and len(life) == len(self._life) and life != self._life:
            raise gone(
                f"session {name!r} was open in a server that has been stopped since; its episode is lost. Begin a new one."
            )
        raise not_found(f"there is no session {name[:80]!r}; it was never begun, or has been over for long.")

    def still_open(self, name: str) -> Session:
        session = self.find(name)
        if not session.open:
            because = f" ({session.note})" if session.note else ""
            raise gone(f"session {name!r} is over: {session.outcome}{because}. Begin a new one.")
        session.touched = time.time()
        return session

    async def see(self, session: Session, transition: Transition, number: int | None) -> Turn | None:
        """Told what is there now, it acts; None where that was the end."""
        if session.world is not None:
            raise out_of_turn(
                f"session {session.name!r} is played in a world here, which tells it what is seen; step it instead."
            )
        with self.alone(session):
            return await self._see(session, transition, number)

    async def _see(self, session: Session, transition: Transition, number: int | None) -> Turn | None:
        turn = session.turns[-1] if session.turns else None
        again = turn is not None and (number == turn.number if number is not None else not turn.acted)
        if turn is not None and again and (transition.done or transition.success):
            raise out_of_turn(
                f"turn {turn.number} was not told as the end; tell what came of its action as turn {turn.number + 1}, or end "
                "the session (end)."
            )
        if turn is not None and number is not None and number == turn.number:
            if transition.observation != turn.observation:
                raise out_of_turn(f"turn {number} was already told something else; the next one is turn {number + 1}.")
            return turn if turn.acted else await self._act(session, turn)
        following = turn.number + 1 if turn else 1
        if number is not None and number != following:
            raise out_of_turn(f"turn {number} is out of order; the next one is turn {following}.")
        if turn is not None and not turn.acted:
            # Its answer never came (a time limit, a server in trouble): the same observation asks for it again.
            if transition.observation != turn.observation:
                raise out_of_turn(f"turn {turn.number} has no action yet; ask for it again with what was seen then.")
            return await self._act(session, turn)
        await self.told(session, transition)
        if not session.open:
            return None
        return await self._act(session, await self.next_turn(session, transition.observation))

    @contextmanager
    def alone(self, session: Session) -> Iterator[None]:
        """One request at a time: what is done to an episode is done in order."""
        if session.acting:
            raise out_of_turn(f"session {session.name!r} is still busy with turn {len(session.turns)}; one at a time.")
        session.acting = True
        try:
            yield
        finally:
            session.acting = False
            session.touched = time.time()

    async def told(self, session: Session, transition: Transition) -> None:
        """What came of the last action, where that is not known yet."""
        if session.unanswered:
            try:
                signals = await self._read(session, lambda: session.episode.record(transition))
            except Refused as error:  # its tracker may have counted half of the turn
                self.end(session, "broken", str(error))
                raise
            turn = session.turns[-1]
            turn.signals, turn.effective = {**transition.signals, **signals}, transition.effective
        if transition.done or transition.success:
            session.final = transition.observation
            self.end(session, "success" if transition.success else "failure", transition.label)

    def at_limit(self, session: Session) -> bool:
        """Whether it has had all turns it may have; then it is over."""
        if len(session.turns) < self._settings.turns:
            return False
        self.end(session, "limit", f"{self._settings.turns} turns")
        return True

    async def next_turn(self, session: Session, observation: Observation) -> Turn:
        if self.at_limit(session):
            raise gone(f"session {session.name!r} has had {self._settings.turns} turns, which is all a session may have here.")
        turn = Turn(len(session.turns) + 1, observation, "", "")
        policy = session.offer.policy
        request = session.request = await self._read(session, lambda: session.episode.build_request(observation, policy))
        assert session.episode.prompt is not None
        turn.prompt, turn.state, turn.prompt_tokens = session.episode.prompt.text, session.episode.block, len(request.prompt)
        if session.turns:  # lists of actions are most of what a turn holds, and nobody chooses from an old one
            session.turns[-1].observation = Observation(session.turns[-1].observation.text)
        session.turns.append(turn)
        return turn

    async def _read(self, session: Session, read: Callable[[], Answer]) -> Answer:
        """What the wording and the tracker make of something told; a drafted one is asked beside the event loop."""
        with _explained(session):
            if session.offer.aside is None:
                return read()
            try:
                async with asyncio.timeout(self._settings.answer_s):
                    result = await session.offer.aside.do(read)
            except TimeoutError:
                raise Refused(504, f"the drafted tracker did not answer within {self._settings.answer_s:g} s.") from None
            if not session.open:
                raise gone(f"session {session.name!r} was ended while it was reading.")
            return result

    def acted(self, session: Session, action: str) -> Turn:
        """By hand."""
        turn = session.turns[-1]
        session.episode.action = turn.action = action
        turn.by, turn.acted = HAND, True
        self._metrics.turn(session.offer.name, HAND, turn.prompt_tokens, 0)
        return turn

    async def act(self, session: Session) -> Turn:
        """The module's own answer to the present turn."""
        return await self._act(session, session.turns[-1])

    async def _act(self, session: Session, turn: Turn) -> Turn:
        episode, offer, request = session.episode, session.offer, session.request
        assert request is not None
        completion = await answer_in_time(
            lambda: self._gathering.sample(offer.policy, episode.sampling, request), self._settings, self._gathering
        )
        if not session.open:
            raise gone(f"session {session.name!r} was ended while it was thinking.")
        parsed = episode.parse_completion(completion)
        turn.action, turn.acted, turn.valid, turn.wrote = parsed.action, True, parsed.valid, completion.text
        turn.tokens, turn.probability = len(completion.tokens), math.exp(float(completion.logprobs.sum()))
        self._metrics.turn(offer.name, MODULE, turn.prompt_tokens, turn.tokens)
        return turn

    def end(self, session: Session, outcome: str, note: str = "") -> None:
        if not session.open:
            return
        session.close(outcome, note)
        self._metrics.ended(session.offer.name, outcome)
        if session.world is not None:
            session.world.close()
        del self._open[session.name]
        self._over[session.name] = session
        while len(self._over) > self._settings.kept:
            self._over.popitem(last=False)

    def end_idle(self) -> None:
        """Those that nobody has spoken to for long."""
        before = time.time() - self._settings.idle_s
        for session in [s for s in self._open.values() if s.touched < before and not s.acting]:
            self.end(session, "expired", f"nobody spoke to it for {self._settings.idle_s:g} s")

    def end_all(self, why: str) -> None:
        for session in list(self._open.values()):
            self.end(session, "stopped", why)


@contextmanager
def _explained(session: Session) -> Iterator[None]:
    """A wording or tracker that cannot make sense of what was told says nothing about the server: the teller is told."""
    try:
        yield
    except Refused:
        raise
    except TacitError as error:
        raise unusable(str(error)) from error
    except Exception as error:
        name = session.offer.name
        raise unusable(f"module {name} cannot read what it was told: {type(error).__name__}: {error}") from error


async def answer_in_time(ask: Callable[[], Awaitable[Answer]], settings: ServingSettings, gathering: Gathering) -> Answer:
    """What the model says, or a refusal where too many wait for it or it takes too long."""
    if gathering.waiting >= settings.waiting:
        raise too_many(f"{gathering.waiting} requests wait for the model; come back in a moment.")
    try:
        async with asyncio.timeout(settings.answer_s):
            return await ask()
    except TimeoutError:
        raise Refused(504, f"no answer within {settings.answer_s:g} s; ask again for the same turn.") from None


# What may be asked, whichever door it comes in by: how long, how large, how hot.

MOST_CHARACTERS = 16_384
"""of one text; what a module reads in one turn is bounded by its context, far below this"""
COLDEST = 1e-20
"""below it, logits divided by the temperature are no numbers any more"""


def _warm(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        raise ValueError(f"{temperature} is too close to 0 to divide by; say 0 for the likeliest, or at least {COLDEST:g}")
    return temperature


def _whole(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("has half a character (a lone surrogate) in it")
    return text


Written = Annotated[str, AfterValidator(_whole)]
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Actions = Annotated[list[Text], Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Temperature = Annotated[Number, Field(ge=0, le=100), AfterValidator(_warm)]


class Asked(BaseModel):
    """What is not known here is refused rather than left out: an answer that ignores half of a question looks like one. Many
    clients send everything they know of, with `null` for what was not said."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _as_not_said(cls, told: Any) -> Any:
        return {name: value for name, value in told.items() if value is not None} if isinstance(told, dict) else told
