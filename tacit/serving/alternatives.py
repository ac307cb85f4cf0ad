"""What else the module might have done: probabilities of whole actions, in its own prompt.

    π(a | x) = Π over tokens of π(token | x, earlier tokens)

of every action that the world lists, at the temperature the module is played at (1 where it is greedy). Where the world lists
none, of what a few draws come up with.
"""

from __future__ import annotations

import math
from contextlib import suppress

from tacit.core.errors import TacitError
from tacit.core.protocols import Request
from tacit.core.seeds import derive
from tacit.core.types import Prompt
from tacit.rollout.fitting import encode_action
from tacit.serving.offer import Offer
from tacit.serving.service import Service
from tacit.serving.session import Session, Turn
from tacit.serving.sessions import answer_in_time

MOST_LISTED, DRAWS = 100, 16


async def weigh(session: Session, turn: Turn, most: int, service: Service) -> None:
    """Give the present turn its likeliest `most` actions, likeliest first."""
    offer, request, prompt = session.offer, session.request, session.episode.prompt
    if turn.alternatives is not None or request is None or prompt is None or turn is not session.turns[-1]:
        return
    listed, seed = turn.observation.actions[:MOST_LISTED], session.episode.seed
    temperature = session.episode.sampling.temperature or 1.0

    def work() -> list[tuple[str, float]]:
        meant = listed or _drawn(offer, request, seed, session)
        return _scored(offer, prompt, request, tuple(dict.fromkeys(meant)), temperature)

    found = await answer_in_time(lambda: service.gathering.call(work), service.settings, service.gathering)
    turn.alternatives = [{"action": action, "probability": value} for action, value in found[:most]]


def _drawn(offer: Offer, request: Request, seed: int, session: Session) -> tuple[str, ...]:
    requests = [Request(request.prompt, derive(seed, len(session.turns), "alternative", draw)) for draw in range(DRAWS)]
    completions = offer.policy.sample(requests, session.episode.sampling)
    return tuple(offer.context.format.parse(completion.text).action for completion in completions)


def _scored(
    offer: Offer, prompt: Prompt, request: Request, actions: tuple[str, ...], temperature: float
) -> list[tuple[str, float]]:
    written = {}
    for action in actions:
        with suppress(TacitError):  # what the module's format cannot write, it cannot do
            tokens = encode_action(prompt, action, offer.context.format, offer.policy)
            if len(tokens) + len(request.prompt) <= offer.policy.context_limit:
                written[action] = tokens
    rows = offer.policy.logprobs([request.prompt] * len(written), list(written.values()), temperature)
    scored = [(action, math.exp(float(row.sum()))) for action, row in zip(written, rows, strict=True)]
    return sorted(scored, key=lambda pair: -pair[1])
