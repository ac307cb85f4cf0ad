"""One update is one exact optimizer step, however the batch is split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError


@dataclass(frozen=True)
class PolicyGradient:
    """−Σ A log π / total tokens"""

    needs: frozenset[str] = frozenset()
    scale: float = 1.0

    def __call__(self, view):
        loss = -self.scale * (view.advantages_T * view.logprobs_T).sum() / view.total_tokens
        return loss, {"advantage": view.advantages_T.sum(), "advantage_max": view.advantages_T.max()}


@dataclass(frozen=True)
class Everything:
    """Uses every field a loss may ask for."""

    needs: frozenset[str] = frozenset({"entropy", "values"})

    def __call__(self, view):
        loss = -0.1 * view.entropy_T.sum() / view.total_tokens
        loss = loss + ((view.values_R - view.rows["returns"]) ** 2).sum() / view.total_rows
        loss = loss + (view.tokens["weight"] * view.logprobs_T / view.lengths_R[view.row_T]).sum() / view.total_rows
        return loss, {"weight": view.tokens["weight"].sum()}


@pytest.fixture()
def batch(rows) -> Batch:
    prompts, completions = rows
    rng = np.random.default_rng(1)
    column = lambda: [rng.normal(size=len(c)) for c in completions]  # noqa: E731
    plain = replace(Batch.imitation(prompts, completions), advantages=column(), behavior=column(), sampled=True)
    return plain.with_column("weight", "token", column()).with_column("returns", "row", rng.normal(size=len(prompts)))


def gradients(policy, batch: Batch, losses) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The gradient an update is about to use."""
    weights, recorded = policy.engine.member("default").weights, {}

    def take(lr: float, norm: float) -> None:
        recorded.update({name: p.grad.clone() for name, p in weights.master.items() if p.grad is not None})

    weights.step = take
    metrics = policy.update(batch, losses, 1e-3)
    return recorded, metrics


def plain_gradient(policy, batch: Batch) -> dict[str, torch.Tensor]:
    """The same loss by a padded transformers forward pass over all positions, with an attention mask."""
    hf = policy.engine.model.hf
    width = max(len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True))
    ids, mask = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width, dtype=torch.long)
    for i, (p, c) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        ids[i, : len(p) + len(c)] = torch.from_numpy(np.concatenate([p, c]))
        mask[i, : len(p) + len(c)] = 1
    logps = torch.log_softmax(hf(input_ids=ids, attention_mask=mask).logits[:, :-1], -1)
    chosen = logps.gather(-1, ids[:, 1:, None]).squeeze(-1)
    loss = torch.zeros(())
    for i, (p, c) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        loss = loss - (chosen[i, len(p) - 1 : len(p) + len(c) - 1] * torch.from_numpy(batch.advantages[i]).float()).sum()
    (loss / batch.total_tokens).backward()
    found = {name: p.grad.clone() for name, p in hf.named_parameters()}
    hf.zero_grad()
    return found


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("token_budget", [1, 60, 100_000])
def test_gradient_matches_plain_transformers(make_policy, batch, token_budget: int) -> None:
    policy = make_policy(token_budget=token_budget)
    found, metrics = gradients(policy, batch, [PolicyGradient()])
    expected = plain_gradient(policy, batch)
    assert_same(found, expected)
    norm = torch.stack([g.norm() for g in expected.values()]).norm()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"lora_rank": 4}])
def test_gradient_does_not_depend_on_the_token_budget(make_policy, batch, settings) -> None:
    losses = [PolicyGradient(), Everything()]
    (one, m1), (many, m2) = (
        gradients(make_policy(value_head=True, token_budget=budget, **settings), batch, losses) for budget in (100_000, 1)
    )
    assert_same(one, many)
    for key in m1.keys() - {"computed_share"}:
        assert m1[key] == pytest.approx(m2[key], rel=1e-4, abs=1e-6), key


def test_update_metrics_match_the_batch(make_policy, batch) -> None:
    policy = make_policy(token_budget=60)
    scores = policy.logprobs(batch.prompts, batch.completions)
    batch = replace(batch, behavior=[s + 0.25 for s in scores])
    second = PolicyGradient(scale=2.0)
    metrics = policy.update(batch, [PolicyGradient(), second], 1e-3)
    flat = np.concatenate(batch.advantages)
    expected = -(flat * np.concatenate(scores)).mean()
    assert metrics["loss/policy_gradient"] == pytest.approx(expected, rel=1e-4)
    assert metrics["loss/policy_gradient_1"] == pytest.approx(2 * expected, rel=1e-4)
    assert metrics["loss"] == pytest.approx(3 * expected, rel=1e-4)
    assert metrics["advantage"] == metrics["policy_gradient_1/advantage"] == pytest.approx(flat.mean(), rel=1e-5)
    assert metrics["advantage_max"] == pytest.approx(flat.max(), rel=1e-5)
    assert metrics["behaviour_gap"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["behaviour_gap_max"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["tokens"] == batch.total_tokens and metrics["rows"] == len(batch) - 1
    assert 0 < metrics["entropy"] <= np.log(policy.engine.model.vocabulary)
    assert metrics["computed_share"] >= 1


def test_lora_dropout_applies_only_to_imitation(make_policy, batch) -> None:
    """In RL, ratios compare with the sampler's log-probabilities, and the sampler uses no dropout."""

    def loss(dropout: float, sampled: bool) -> float:
        policy = make_policy(lora_rank=4, lora_dropout=dropout)
        policy.update(
            replace(batch, sampled=True), [PolicyGradient()], 1e-1
        )  # a new adapter adds zero, so dropout would not show
        return policy.update(replace(batch, sampled=sampled), [PolicyGradient()], 0.0)["loss"]

    assert loss(0.9, sampled=True) == loss(0.0, sampled=True)
    assert loss(0.9, sampled=False) != loss(0.0, sampled=False)


def test_imitation_has_no_behaviour_gap(make_policy, rows) -> None:
    assert "behaviour_gap" not in make_policy().update(Batch.imitation(*rows), [PolicyGradient()], 1e-3)


def test_imitation_reduces_the_loss(make_policy, rows) -> None:
    policy, batch = make_policy(), Batch.imitation(*rows)
    losses = [policy.update(batch, [PolicyGradient()], 1e-2)["loss"] for _ in range(60)]
    assert losses[-1] < 0.3 < 4 < losses[0]


def test_updates_repeat_bit_for_bit(make_policy, batch) -> None:
    digests = set()
    for _ in range(2):
        policy = make_policy(token_budget=60, lora_rank=4, lora_dropout=0.2)
        for _ in range(3):
            policy.update(batch, [PolicyGradient()], 1e-3)
        digests.add(policy.digest())
    assert len(digests) == 1


def test_dropout_acts_only_in_updates(make_policy, rows) -> None:
    policy, still = make_policy(lora_rank=4, lora_dropout=0.5), make_policy(lora_rank=4)
    batch = Batch.imitation(*rows)
    for each in (policy, still):
        for _ in range(2):
            each.update(batch, [PolicyGradient()], 1e-2)
    assert policy.digest() != still.digest()
    first, second = policy.logprobs(*rows), policy.logprobs(*rows)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}])
def test_nonfinite_loss_changes_no_weights(make_policy, batch, poison: float, settings) -> None:
    policy = make_policy(token_budget=60, **settings)
    before = policy.digest()
    bad = [a.copy() for a in batch.advantages]
    bad[3][2] = poison
    with pytest.raises(NonFiniteLoss, match="no weight was changed") as caught:
        policy.update(replace(batch, advantages=bad), [PolicyGradient()], 1e-3)
    assert caught.value.batch.advantages is bad
    assert policy.digest() == before
    weights = policy.engine.member("default").weights
    assert all(p.grad is None for p in (*weights.params.values(), *weights.master.values()))
    assert not any(moment.any() for state in weights.optimizer.state.values() for moment in state.values())
    assert weights.steps == 0
    assert np.isfinite(policy.update(batch, [PolicyGradient()], 1e-3)["loss"])


@pytest.mark.slow
def test_small_steps_accumulate_in_float32_masters(make_policy, rows) -> None:
    """lr 1e-6 is far below the spacing of bfloat16 numbers near a norm's weight of 1; the float32 masters keep it."""
    policy, batch = make_policy(dtype="bfloat16"), Batch.imitation(*rows)
    weights = policy.engine.member("default").weights
    weights.dither_masters()
    master = weights.master["model.norm.weight"]
    before = master.detach().clone()
    for _ in range(5):
        policy.update(batch, [PolicyGradient()], 1e-6)
    assert ((master - before).abs() > 2e-6).any() and ((master - before).abs() < 1e-5).all()
    assert (policy.engine.model.hf.model.norm.weight == 1).all()
    assert policy.engine.model.hf.dtype == torch.bfloat16


def test_gradient_norm_is_clipped(make_policy, batch) -> None:
    """AdamW is almost invariant to the scale of one gradient, so check its first moment, which is 0.1 × gradient."""
    policy = make_policy(clip_norm=1e-3)
    assert policy.update(batch, [PolicyGradient()], 1e-3)["grad_norm"] > 1e-2
    state = policy.engine.member("default").weights.optimizer.state
    moments = torch.stack([s["exp_avg"].norm() for s in state.values()]).norm()
    assert float(moments) == pytest.approx(1e-4, rel=1e-2)


def test_rows_without_tokens_change_nothing(make_policy, batch) -> None:
    kept = np.array([i for i, c in enumerate(batch.completions) if len(c)])
    whole, without = make_policy(value_head=True), make_policy(value_head=True)
    whole.update(batch, [PolicyGradient(), Everything()], 1e-3)
    without.update(batch.select(kept), [PolicyGradient(), Everything()], 1e-3)
    assert whole.digest() == without.digest()


def test_batch_without_tokens_takes_no_step(make_policy, batch) -> None:
    policy = make_policy()
    before = policy.digest()
    assert policy.update(batch.select(np.array([4])), [PolicyGradient()], 1e-3)["tokens"] == 0
    assert policy.digest() == before


def test_missing_value_head_is_refused_with_the_setting(make_policy, batch) -> None:
    with pytest.raises(TacitError, match="value-head"):
        make_policy().update(batch, [Everything()], 1e-3)
    with pytest.raises(TacitError, match="value-head"):
        make_policy().values(batch.prompts)


def test_columns_of_wrong_length_are_refused(make_policy, batch) -> None:
    with pytest.raises(ValueError, match="'advantages'"):
        make_policy().update(replace(batch, advantages=[a[:-1] for a in batch.advantages]), [PolicyGradient()], 1e-3)
