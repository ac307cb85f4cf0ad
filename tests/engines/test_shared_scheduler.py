"""One scheduler for several adapters: a completion is the one its adapter samples alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_scheduler import assert_same, make_chains

from tacit.core.credit import Batch
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.local.fast import llama
from tacit.engines.local.fast.projections import UnsupportedModule
from tacit.engines.local.policy import LocalPolicy
from tacit.losses.surrogates import Imitation

WARM = Sampling(temperature=0.9, max_tokens=12)


@pytest.fixture
def policies(make_policy) -> list[LocalPolicy]:
    """Three very different adapters on one base."""
    base = make_policy(lora_rank=4)
    views = [base, base.adapter("one"), base.adapter("two")]
    torch.manual_seed(0)
    for view in views:
        for name, parameter in base.engine.adapters.parameters(view.name).items():
            if "lora_B" in name:
                parameter.data.normal_(std=0.3)
    base.engine.weights_changed()
    return views


def sample_shared(policies: list[LocalPolicy], lines: list[list[Request]]) -> dict[tuple[int, int], Completion]:
    """Completions by (line, turn): line n uses adapter n modulo 3; a request follows when the previous one finishes."""
    scheduler = policies[0].engine.open_shared_scheduler(WARM)
    assert scheduler is not None
    found: dict[tuple[int, int], Completion] = {}
    request_ids = {scheduler.submit(line[0], policies[n % 3].name): (n, 0) for n, line in enumerate(lines)}
    while finished := scheduler.wait():
        for request_id, completion in finished:
            line, turn = request_ids.pop(request_id)
            found[line, turn] = completion
            if turn + 1 < len(lines[line]):
                request_ids[scheduler.submit(lines[line][turn + 1], policies[line % 3].name)] = (line, turn + 1)
    scheduler.close()
    return found


def test_completion_equals_one_of_its_adapter_alone(policies):
    lines = make_chains(9, 3)
    found = sample_shared(policies, lines)
    assert len(found) == 27
    for (line, turn), completion in found.items():
        assert_same(completion, policies[line % 3].sample([lines[line][turn]], WARM)[0])


def test_shared_prompt_is_prefilled_per_adapter(policies):
    request = Request(np.arange(9), seed=5, max_tokens=12)
    found = sample_shared(policies, [[request]] * 6)
    assert len({tuple(found[n, 0].logprobs.tolist()) for n in range(3)}) == 3, "else this test shows nothing"
    for (line, _), completion in found.items():
        assert_same(completion, policies[line % 3].sample([request], WARM)[0])


def test_adapter_update_restarts_sequences(policies, rows):
    scheduler = policies[0].engine.open_shared_scheduler(WARM)
    requests = [Request(np.arange(4 + i), seed=i, max_tokens=2 if i == 0 else 60) for i in range(6)]
    request_ids = {scheduler.submit(request, policies[i % 3].name): i for i, request in enumerate(requests)}
    early = {request_ids[request_id] for request_id, _ in scheduler.wait()}
    assert 0 in early and len(early) < 6
    policies[1].update(Batch.imitation(*rows), [Imitation()], 1e-2)
    late: dict[int, Completion] = {}
    while finished := scheduler.wait():
        late |= {request_ids[request_id]: completion for request_id, completion in finished}
    assert early.isdisjoint(late) and len(early) + len(late) == 6 and {i % 3 for i in late} == {0, 1, 2}
    for i, completion in late.items():
        assert_same(completion, policies[i % 3].sample([requests[i]], WARM)[0])


def test_removing_an_adapter_keeps_the_others(policies):
    lines = make_chains(3, 2)
    before = sample_shared(policies, lines)
    engine = policies[0].engine
    scheduler = engine.open_shared_scheduler(WARM)
    first = scheduler.submit(lines[0][0], policies[0].name)
    engine.remove_adapter(policies[2].name)
    other = engine.sampler._llama.forward._layers[0].qkv._by_adapter
    assert policies[2].name not in other and policies[1].name in other, "its copy of the weights is given up too"
    assert_same(dict(scheduler.wait())[first], before[0, 0])
    scheduler.submit(lines[2][0], policies[2].name)
    with pytest.raises(UnsupportedModule, match="adapter 'two' does not exist any more"):  # instead of sampling from the base
        scheduler.wait()


def test_no_shared_scheduler_without_lora_or_for_large_models(make_policy, policies, monkeypatch):
    assert make_policy().engine.open_shared_scheduler(WARM) is None
    monkeypatch.setattr(llama, "MULTI_ADAPTER_LIMIT", 1000)
    assert policies[0].engine.open_shared_scheduler(WARM) is None
