"""A pretraining step matches a plain training loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.engines.local.update import MICRO_BATCHES, PretrainingTrainer

LR, DECAY = 3e-3, 0.05


def trainer(policy, **settings) -> PretrainingTrainer:
    return PretrainingTrainer(policy.engine.model.hf, policy.engine.codec.pad, **settings)


@pytest.fixture
def texts_as_rows() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(2, 250, size=n) for n in (9, 2, 31, 17, 17, 5, 60, 3, 12)]


def reference_step(model, rows, optimizer) -> float:
    """One row at a time, no padding: L = −Σ log π(token | the document so far) / tokens predicted"""
    total = sum(len(row) - 1 for row in rows)
    whole = 0.0
    for row in rows:
        ids = torch.from_numpy(row)[None]
        logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        loss = -logps.gather(-1, ids[0, 1:, None]).sum() / total
        loss.backward()
        whole += float(loss.detach())
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    for p in model.parameters():
        p.grad *= min(1.0, 1.0 / (float(norm) + 1e-6))
    optimizer.step()
    optimizer.zero_grad()
    return whole


def test_steps_match_a_plain_training_loop(make_policy, texts_as_rows):
    policy, plain = make_policy(seed=1), make_policy(seed=1).engine.model.hf
    learner = trainer(policy, weight_decay=DECAY)
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.98))
    for rows in (texts_as_rows, texts_as_rows[3:], texts_as_rows[:2]):
        assert float(learner.step(rows, LR)) == pytest.approx(reference_step(plain, rows, optimizer), rel=1e-5)
    for ours, theirs in zip(policy.engine.model.hf.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_loss_does_not_depend_on_the_order_or_batching_of_documents(make_policy, texts_as_rows):
    one, other = make_policy(seed=2), make_policy(seed=2)
    first = trainer(one).step(texts_as_rows, LR)
    second = trainer(other).step(texts_as_rows[::-1], LR)
    assert float(first) == pytest.approx(float(second), rel=1e-6)
    alone = sum(float(trainer(make_policy(seed=2)).step([row], 0.0)) * (len(row) - 1) for row in texts_as_rows)
    assert float(first) == pytest.approx(alone / sum(len(row) - 1 for row in texts_as_rows), rel=1e-5)


def test_step_works_with_fewer_documents_than_micro_batches(make_policy, texts_as_rows):
    learner = trainer(make_policy())
    assert len(texts_as_rows[:2]) < MICRO_BATCHES["cpu"] and float(learner.step(texts_as_rows[:2], LR)) > 0


@pytest.mark.slow
def test_pretraining_learns_a_document_and_the_sampler_uses_the_new_weights(make_policy):
    from tacit.core.protocols import Request, Sampling

    policy = make_policy(seed=5)
    learner = trainer(policy)
    prompt, answer = policy.encode_prompt("numbers: 3 4"), policy.encode_completion("op(*, 3, 4)")
    greedy, request = Sampling(temperature=0.0, max_tokens=len(answer)), [Request(prompt)]
    assert policy.sample(request, greedy)[0].text != "op(*, 3, 4)"
    document = np.concatenate([prompt, answer])
    losses = [float(learner.step([document] * 4, 1e-2)) for _ in range(40)]
    policy.engine.weights_changed(policy.name)
    assert losses[-1] < 0.1 * losses[0]
    assert policy.sample(request, greedy)[0].text == "op(*, 3, 4)"
