"""What else the module might have done: probabilities of whole actions, in its own prompt.

    π(a | x) = Π over tokens of π(token | x, earlier tokens)

of every action that the world lists, at the temperature the module is played at (1 where it is greedy). Where the world lists
none, of what a few draws come up with.
"""

from __future__ import annotations

import math

from tacit.core.actions import ActionFormat
from tacit.core.protocols import Request
from tacit.core.seeds import derive
from tacit.core.types import Prompt
from tacit.rollout.fitting import encode_action
from tacit.serving.catalogue import Offer
from tacit.serving.service import Service
from tacit.serving.sessions import Session, Turn

MOST_LISTED, DRAWS = 100, 16


async def weigh(session: Session, turn: Turn, most: int, service: Service) -> None:
    """Give the present turn its likeliest `most` actions, likeliest first."""
    offer, request, prompt = session.offer, session.request, session.episode.prompt
    if turn.alternatives is not None or request is None or prompt is None or turn is not session.turns[-1]:
        return
    listed, seed, temperature = (
        turn.observation.actions[:MOST_LISTED],
        session.episode.seed,
        session.episode.sampling.temperature,
    )

    def work() -> list[tuple[str, float]]:
        meant = listed or _drawn(offer, request, seed, session)
        return _scored(offer, prompt, request, offer.context.format, tuple(dict.fromkeys(meant)), temperature or 1.0)

    found = await service.gathering.call(work)
    turn.alternatives = [{"action": action, "probability": value} for action, value in found[:most]]


def _drawn(offer: Offer, request: Request, seed: int, session: Session) -> tuple[str, ...]:
    requests = [Request(request.prompt, derive(seed, len(session.turns), "alternative", draw)) for draw in range(DRAWS)]
    completions = offer.policy.sample(requests, session.episode.sampling)
    return tuple(offer.context.format.parse(completion.text).action for completion in completions)


def _scored(
    offer: Offer, prompt: Prompt, request: Request, form: ActionFormat, actions: tuple[str, ...], temperature: float
) -> list[tuple[str, float]]:
    written = [encode_action(prompt, action, form, offer.policy) for action in actions]
    fits = [i for i, tokens in enumerate(written) if len(tokens) + len(request.prompt) <= offer.policy.context_limit]
    rows = offer.policy.logprobs([request.prompt] * len(fits), [written[i] for i in fits], temperature)
    scored = [(actions[i], math.exp(float(row.sum()))) for i, row in zip(fits, rows, strict=True)]
    return sorted(scored, key=lambda pair: -pair[1])
