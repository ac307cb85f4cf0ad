"""The pretraining loop and the reading measure, with fake policies."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.core.protocols import PolicyHooks
from tacit.core.types import Completion
from tacit.pretraining import Corpus, PretrainingSettings, make_documents, measure_reading, pretrain
from tacit.training.imitation import lr_factor
from tacit.worlds import get_environment


def test_each_step_uses_its_rows_and_learning_rate():
    corpus = Corpus(np.arange(40, dtype=np.uint16), np.arange(0, 41, 4), {})
    settings = PretrainingSettings(steps=6, rows=5, lr=0.5, warmup=0.4, seed=2)
    calls, losses = [], []

    def learn(rows, lr):
        calls.append(([row[0] // 4 for row in rows], lr))
        return len(calls)

    pretrain(learn, corpus, settings, lambda step, loss: losses.append((step, loss)))
    assert losses == [(n, n) for n in range(1, 7)]
    assert [lr for _, lr in calls] == [0.5 * lr_factor(step, 6, 0.4) for step in range(6)]
    assert sorted(calls[0][0] + calls[1][0]) == list(range(10)) and sorted(calls[0][0] + calls[2][0]) != list(range(10))


class Reader(PolicyHooks):
    """A fake policy that encodes text as bytes and answers from a function."""

    def __init__(self, answers, context_limit=10_000):
        self._answers, self.context_limit, self.texts = answers, context_limit, []

    def encode_prompt(self, text):
        return np.frombuffer(text.encode(), np.uint8)

    def sample(self, requests, sampling, hidden=None):
        assert sampling.temperature == 0.0
        texts = [bytes(request.prompt).decode() for request in requests]
        self.texts += texts
        nothing = np.zeros(0, np.int64)
        return [Completion(nothing, np.zeros(0, np.float32), self._answers(text), "stop") for text in texts]


@pytest.fixture(scope="module")
def right() -> dict[str, str]:
    from tacit.core.seeds import derive

    documents = make_documents(get_environment("countdown"), 40, derive(3, "reading"))
    return {d.prompt: d.answer for d in documents if d.kind == "questions"}


def test_measure_reading_counts_only_exact_answers(right):
    world = get_environment("countdown")
    assert measure_reading(Reader(right.__getitem__), [world], 3, each=40) == {"countdown questions": 1.0}
    assert measure_reading(Reader(lambda text: right[text] + " "), [world], 3, each=40) == {"countdown questions": 0.0}


def test_ambiguous_questions_and_long_prompts_are_skipped(right):
    world = get_environment("countdown")

    def fails_at_how(text):
        return "what?" if text.rpartition("\n")[2].startswith("how") else right[text]

    reader = Reader(fails_at_how, context_limit=190)
    assert measure_reading(reader, [world], 3, each=40) == {"countdown questions": 1.0}
    assert 0 < len(reader.texts) < 40 and max(map(len, reader.texts)) < 150


def test_reading_questions_are_not_in_the_corpus(right):
    prompts = {d.prompt for d in make_documents(get_environment("countdown"), 40, 3) if d.kind == "questions"}
    assert len(right.keys() & prompts) < 0.02 * len(right)
