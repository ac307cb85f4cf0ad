"""Whether a policy reads hints, asked of one that does: in plain prompts and in conversations with tools."""

from __future__ import annotations

import numpy as np
import pytest
from templates import FUNCTIONS, talking_tokenizer

from tacit.engines.local.tokenizer import TextCodec
from tacit.evaluation.hints import FOLLOWED, PLACES, probe, probe_turns
from tacit.prompts.conversation import CLOSE, OPEN
from tacit.prompts.history import History
from tacit.worlds import get_environment


class Obedient(TextCodec):
    """Thinks likely what a note in its prompt names, and nothing else."""

    def __init__(self) -> None:
        super().__init__(talking_tokenizer(FUNCTIONS), 8192)
        self.scored: list[str] = []

    def logprobs(self, prompts, completions, temperature=1.0):
        self.scored += [self.tokenizer.decode(completion.tolist()) for completion in completions]
        notes = [self.tokenizer.decode(p.tolist()).partition(OPEN)[2].partition(CLOSE)[0].strip() for p in prompts]
        texts = self.scored[-len(completions) :]
        return [
            np.full(len(c), 0.0 if note and note in text else -1.0)
            for note, text, c in zip(notes, texts, completions, strict=True)
        ]


@pytest.mark.parametrize("style", ["bare", "tools"])
def test_what_is_scored_is_the_answer_as_the_policy_would_write_it(style):
    world, policy = get_environment("countdown"), Obedient()
    context = History(world.wording("full"), 2, False, style, style == "tools")
    found = probe_turns(world, world.tasks("train", 3, 0), context, 0)
    results = {(result.kind, result.place): result for result in probe(policy, context, found)}
    wanted = {action for spot in found for action in (spot.right, spot.wrong)}
    assert {context.format.parse(text.removesuffix("<|im_end|>")).action for text in policy.scored} == wanted
    assert all(text.endswith("<|im_end|>") for text in policy.scored), "an answer that does not end is another answer"
    if style == "tools":
        assert all(text.startswith("<tool_call>\n<function=act>") for text in policy.scored)
    for place in PLACES:
        assert results["true", place].raised == results[FOLLOWED, place].raised == 1.0
        assert results["empty", place].raised == results["false", place].raised == 0.0
