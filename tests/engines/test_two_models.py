"""Two models in one process: when one runs out of memory, the other's sampler frees its caches. The error is simulated."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.protocols import Request, Sampling
from tacit.engines.local import memory
from tacit.engines.local.fast.llama_decoding import LlamaDecodeBatch
from tacit.engines.local.memory import free_memory, retry_on_oom
from tacit.engines.local.settings import EngineSettings
from tacit.losses.surrogates import Imitation

pytestmark = pytest.mark.filterwarnings("ignore:out of GPU memory")
REQUESTS, SAMPLING = [Request(np.arange(5, 15), seed=3)], Sampling(max_tokens=6)


def words(policy) -> list[int]:
    return policy.sample(REQUESTS, SAMPLING)[0].tokens.tolist()


class ShortOnce:
    """Its first attempt runs out of memory."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.tried = 0

    def __call__(self, view=None):
        self.tried += 1
        if self.tried == 1:
            raise torch.OutOfMemoryError("no room")
        return Imitation()(view) if view is not None else None


def updates(policy, rows, monkeypatch) -> None:
    policy.update(Batch.imitation(*rows), [ShortOnce()], 0.0)


def scores(policy, rows, monkeypatch) -> None:
    short, predicting = ShortOnce(), policy.engine.model.forward_hidden
    monkeypatch.setattr(policy.engine.model, "forward_hidden", lambda packed: (short(), predicting(packed))[1])
    policy.logprobs(*rows)


def samples(policy, rows, monkeypatch) -> None:
    short, advance = ShortOnce(), LlamaDecodeBatch.decode
    monkeypatch.setattr(LlamaDecodeBatch, "decode", lambda *arguments: (short(), advance(*arguments))[1])
    policy.sample(REQUESTS * 2, SAMPLING)


def saves(policy, rows, monkeypatch) -> None:
    retry_on_oom(ShortOnce(), policy.engine.device, "a test")


@pytest.mark.parametrize("work", [updates, scores, samples, saves])
def test_oom_frees_the_other_models_caches(make_policy, rows, monkeypatch, work: Callable):
    actor, extractor = make_policy(), make_policy(seed=1)
    before = words(extractor)
    assert extractor.engine.sampler.llama_decoder is not None
    work(actor, rows, monkeypatch)
    assert extractor.engine.sampler.llama_decoder is None
    assert words(extractor) == before


def test_loading_a_model_frees_the_other_models_caches(make_policy, tmp_path, monkeypatch):
    actor = make_policy()
    words(actor)
    sampler = actor.engine.sampler
    actor.engine.model.hf.save_pretrained(tmp_path)
    sampler.device = torch.device("cuda", 0)  # as on a GPU
    monkeypatch.setattr("tacit.engines.local.memory.available_and_total", lambda device: (10, 100))
    monkeypatch.setattr("tacit.engines.local.memory.time.sleep", lambda seconds: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0 if sampler.llama_decoder is not None else 10**12)
    memory.check_memory(str(tmp_path), torch.device("cuda"), torch.bfloat16, EngineSettings())
    assert sampler.llama_decoder is None


def test_busy_sampler_keeps_its_caches(make_policy, monkeypatch):
    policy = make_policy()
    expected = words(policy)
    sampler, decoder = policy.engine.sampler, policy.engine.sampler.llama_decoder
    decoding, go_on, advance, found = threading.Event(), threading.Event(), LlamaDecodeBatch.decode, []

    def wait_then_decode(*arguments):
        decoding.set()
        assert go_on.wait(60)
        return advance(*arguments)

    monkeypatch.setattr(LlamaDecodeBatch, "decode", wait_then_decode)
    thread = threading.Thread(target=lambda: found.append(words(policy)))
    thread.start()
    assert decoding.wait(60)
    free_memory(policy.engine.device)
    assert sampler.llama_decoder is decoder
    go_on.set()
    thread.join(60)
    assert found == [expected]
    free_memory(policy.engine.device)
    assert sampler.llama_decoder is None
