"""How well a policy reads: fresh documents, greedy answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.world import Environment
from tacit.pretraining.corpus import documents

APART = 8
"""questions between two that are asked: those of one episode are much alike"""


def reading(policy: Policy, worlds: Sequence[Environment], seed: int, each: int = 400) -> Mapping[str, float]:
    """`<world> questions`: share of last questions answered exactly. Episodes the corpus does not have."""
    right: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        all_made = (d for d in documents(world, each, derive(seed, "reading")) if d.kind == "questions")
        made = islice(all_made, 0, APART * each, APART)
        asked = [(d, policy.encode_prompt(d.prompt)) for d in made]
        asked = [(d, prompt) for d, prompt in asked if len(prompt) + 40 < policy.context_limit]
        answers = policy.sample([Request(prompt) for _, prompt in asked], Sampling(temperature=0.0, max_tokens=40))
        # Of several right answers to `how`, the first token that differs decides; only exactly equal ones count.
        for (document, _), answer in zip(asked, answers, strict=True):
            if not document.prompt.rpartition("\n")[2].startswith("how"):
                right[f"{world.name} questions"].append(answer.text == document.answer)
    return {name: sum(found) / len(found) for name, found in right.items()}
