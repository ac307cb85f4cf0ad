"""Policy losses on a few tokens: hand-computed values, gradients, and invariance to micro-batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedPolicy, make_group

from tacit.core.protocols import TokenView
from tacit.losses.surrogates import (
    ClippedSurrogate,
    ClippedWeight,
    EntropyBonus,
    Imitation,
    ReferenceKL,
    ReferenceLogprobs,
    ValueLoss,
    mean_over,
    row_sums,
)

LOSSES = [
    ClippedSurrogate(),
    ClippedSurrogate(0.2, 0.28, dual=3.0),
    ClippedSurrogate(over="rows"),
    ClippedSurrogate(3e-4, 4e-4, ratio="sequence", over="rows"),
    ClippedSurrogate(ratio="sequence"),
    ClippedWeight(),
    ClippedWeight(1.0, 0.2, over="rows"),
    ReferenceKL(),
    ValueLoss(),
    EntropyBonus(0.1),
    Imitation(),
]


def view(logprobs, behavior=None, advantages=None, lengths=None, **more) -> TokenView:
    """A whole batch as one micro-batch; lists are per token."""
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    n = len(logprobs)
    lengths = torch.tensor(lengths or [n])
    column = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    more.setdefault("total_tokens", n)
    more.setdefault("total_rows", len(lengths))
    return TokenView(
        logprobs_T=logprobs,
        behavior_T=logprobs.detach().clone() if behavior is None else column(behavior),
        advantages_T=column(advantages if advantages is not None else [1.0] * n),
        row_T=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        lengths_R=lengths,
        **more,
    )


def loss_and_gradient(term, seen):
    loss, _ = term(seen)
    (gradient,) = torch.autograd.grad(loss, seen.logprobs_T)
    return loss.item(), gradient.tolist()


def of_ratios(ratios, advantages, lengths=None, **more):
    """A view of tokens with these ratios to the behavior policy."""
    return view([math.log(r) for r in ratios], [0.0] * len(ratios), advantages, lengths, **more)


def test_mean_over_tokens_and_over_rows():
    seen = view([0.0] * 3, lengths=[1, 2])
    values = torch.tensor([6.0, 3.0, 9.0], dtype=torch.float64)
    assert mean_over(values, seen).item() == 6.0
    assert mean_over(values, seen, "rows").item() == 6.0  # (6 + (3 + 9)/2) / 2
    assert mean_over(torch.tensor([6.0, 3.0, 3.0]), seen, "rows").item() == 4.5
    assert row_sums(values, seen).tolist() == [6.0, 12.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope"),
    [
        (1.1, 2.0, 2.2, 2.2),  # inside: ρA, gradient ρA
        (1.5, 2.0, 2.4, 0.0),  # above the range, A > 0: clipped, no gradient
        (0.5, 2.0, 1.0, 1.0),  # below the range, A > 0: not clipped
        (0.5, -2.0, -1.6, 0.0),  # below the range, A < 0: clipped
        (1.5, -2.0, -3.0, -3.0),  # above the range, A < 0: not clipped
    ],
)
def test_clipped_surrogate_matches_hand_computed_values(ratio, advantage, gain, slope):
    loss, gradient = loss_and_gradient(ClippedSurrogate(), of_ratios([ratio], [advantage]))
    assert loss == pytest.approx(-gain) and gradient == pytest.approx([-slope])


def test_clip_higher_raises_the_upper_bound():
    seen = of_ratios([1.25], [1.0])
    assert loss_and_gradient(ClippedSurrogate(0.2, 0.28), seen) == (pytest.approx(-1.25), pytest.approx([-1.25]))
    assert loss_and_gradient(ClippedSurrogate(0.2, 0.2), seen) == (pytest.approx(-1.2), [0.0])


def test_dual_clip_bounds_loss_of_negative_advantages():
    seen = of_ratios([10.0, 2.0, 10.0], [-1.0, -1.0, 1.0])
    loss, gradient = loss_and_gradient(ClippedSurrogate(dual=3.0), seen)
    # −max(−10, −3), −max(−2, −3), and the token with A > 0 unchanged
    assert loss == pytest.approx((3.0 + 2.0 - 1.2) / 3)
    assert gradient == pytest.approx([0.0, 2.0 / 3, 0.0])


@pytest.mark.parametrize(
    "term", [ClippedSurrogate(), ClippedSurrogate(dual=3.0), ClippedSurrogate(ratio="sequence"), ClippedWeight()]
)
def test_surrogate_gradient_is_policy_gradient_on_policy(term):
    """At ratio 1 the gradient is −A ∇log π, averaged."""
    advantages = [1.0, -2.0, 0.5]
    _, gradient = loss_and_gradient(term, view([-0.3, -1.0, -2.0], advantages=advantages, lengths=[1, 2]))
    assert gradient == pytest.approx([-a / 3 for a in advantages])


def test_over_rows_weights_every_step_equally():
    _, gradient = loss_and_gradient(ClippedSurrogate(over="rows"), view([-1.0] * 4, lengths=[1, 3]))
    assert gradient == pytest.approx([-1 / 2, -1 / 6, -1 / 6, -1 / 6])


def test_sequence_ratio_matches_gspo_by_hand():
    """s = exp(mean log ρ) per row: √(1.2 · 0.9) and 0.5; the gradient of each row is −A s / |y| for each of its tokens."""
    term = ClippedSurrogate(0.2, 0.2, ratio="sequence", over="rows")
    seen = of_ratios([1.2, 0.9, 0.5], [2.0, 2.0, -1.0], lengths=[2, 1])
    loss, gradient = loss_and_gradient(term, seen)
    s = math.sqrt(1.2 * 0.9)
    # the second row is below the range with A < 0: clipped at 0.8, no gradient
    assert loss == pytest.approx(-(2 * s - 0.8) / 2)
    assert gradient == pytest.approx([-2 * s / 2 / 2, -2 * s / 2 / 2, 0.0])


def test_sequence_ratio_gradient_matches_direct_gspo_gradient():
    """Equals the derivative of the sequence ratio itself if advantages are equal within a row."""
    seen = of_ratios([1.2, 0.9, 1.1], [2.0, 2.0, -1.0], lengths=[2, 1])
    _, gradient = loss_and_gradient(ClippedSurrogate(0.2, 0.2, ratio="sequence", over="rows"), seen)
    ratio_R = (row_sums(seen.logprobs_T - seen.behavior_T, seen) / seen.lengths_R).exp()
    advantages_R = torch.tensor([2.0, -1.0], dtype=torch.float64)
    gain_R = torch.minimum(ratio_R * advantages_R, ratio_R.clamp(0.8, 1.2) * advantages_R)
    (plain,) = torch.autograd.grad(-gain_R.mean(), seen.logprobs_T)
    assert gradient == pytest.approx(plain.tolist())


def test_surrogate_statistics_are_sums_over_tokens():
    _, stats = ClippedSurrogate()(of_ratios([1.5, 1.5, 0.5, 1.0], [1.0, -1.0, -1.0, 1.0]))
    assert stats["ratio"].item() == pytest.approx(4.5) and stats["ratio_max"].item() == pytest.approx(1.5)
    assert stats["clipped"].item() == 2
    k3 = lambda r: 1 / r - 1 + math.log(r)  # noqa: E731
    assert stats["old_kl"].item() == pytest.approx(2 * k3(1.5) + k3(0.5))
    assert not any(s.requires_grad for s in stats.values())


@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.9), (1.05, 1.05), (2.0, 1.1)])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_clipped_weight_never_zeroes_the_gradient(ratio, weight, advantage):
    """The clipped weight is a constant, so the gradient is −clip(ρ) A and never zero."""
    loss, gradient = loss_and_gradient(ClippedWeight(0.1, 0.1), of_ratios([ratio], [advantage]))
    assert gradient == pytest.approx([-weight * advantage])
    assert loss == pytest.approx(-weight * advantage * math.log(ratio))


def test_cispo_lower_and_upper_bound_are_independent():
    _, gradient = loss_and_gradient(ClippedWeight(0.3, 0.1), of_ratios([0.5, 2.0], [1.0, 1.0]))
    assert gradient == pytest.approx([-0.7 / 2, -1.1 / 2])


def test_reference_kl_matches_hand_computed_value():
    # d = log 2 and −log 2: exp(d) − d − 1
    seen = view([-1.0, -1.0], tokens={"reference": torch.tensor([-1.0 + math.log(2), -1.0 - math.log(2)])})
    loss, _ = loss_and_gradient(ReferenceKL(0.5), seen)
    assert loss == pytest.approx(0.5 * ((2 - math.log(2) - 1) + (0.5 + math.log(2) - 1)) / 2, rel=1e-6)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=6))
def test_reference_kl_is_nonnegative_and_zero_if_equal(pairs):
    logprobs, reference = zip(*pairs, strict=True)
    seen = view(logprobs, tokens={"reference": torch.tensor(reference, dtype=torch.float64)})
    assert ReferenceKL(1.0)(seen)[0].item() >= 0.0
    same = view(logprobs, tokens={"reference": torch.tensor(logprobs, dtype=torch.float64)})
    assert loss_and_gradient(ReferenceKL(1.0), same) == (0.0, [0.0] * len(logprobs))


def test_reference_logprobs_use_the_sampling_temperature():
    class Reference(ScriptedPolicy):
        def logprobs(self, prompts, completions, temperature=1.0):
            return [np.full(len(c), temperature) for c in completions]

    column = ReferenceLogprobs(0.6)([make_group([[2], [1]])], [], Reference(lambda *_: ""))
    assert [c.tolist() for c in column] == [[0.6, 0.6], [0.6]]
    assert ReferenceLogprobs.name == "reference" and ReferenceLogprobs.per == "token"


def test_value_loss_matches_hand_computed_values():
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    seen = view([-1.0] * 3, lengths=[1, 2], values_R=values, rows={"returns": torch.tensor([2.0, 0.0])})
    loss, _ = ValueLoss(0.5)(seen)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (1 + 9) / 2)
    assert values.grad.tolist() == pytest.approx([-0.5, 1.5])


def test_entropy_bonus_lowers_the_loss():
    entropy = torch.tensor([1.0, 2.0], requires_grad=True)
    loss, _ = EntropyBonus(0.1)(view([-1.0, -1.0], entropy_T=entropy))
    assert loss.item() == pytest.approx(-0.15)


def test_imitation_is_the_mean_negative_log_likelihood():
    seen = view([-1.0, -3.0], advantages=[1.0, 1.0])
    assert loss_and_gradient(Imitation(), seen) == (pytest.approx(2.0), pytest.approx([-0.5, -0.5]))


def test_losses_declare_their_inputs():
    needed = {type(term).__name__: sorted(term.needs) for term in LOSSES}
    assert needed == {
        "ClippedSurrogate": [],
        "ClippedWeight": [],
        "ReferenceKL": ["reference"],
        "ValueLoss": ["returns", "values"],
        "EntropyBonus": ["entropy"],
        "Imitation": [],
    }


def random_batch(seed, lengths):
    """All columns that a loss may read, for rows of these lengths."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    per_token = {name: rng.normal(size=n) for name in ("logprobs", "behavior", "advantages", "reference", "entropy")}
    per_row = {name: rng.normal(size=len(lengths)) for name in ("returns", "values")}
    return per_token, per_row


def part_of(batch, lengths, rows):
    per_token, per_row = batch
    ends = np.cumsum(lengths)
    picked = np.concatenate([np.arange(ends[r] - lengths[r], ends[r]) for r in rows])
    t = {name: torch.tensor(column[picked], requires_grad=True) for name, column in per_token.items()}
    r = {name: torch.tensor(column[rows], requires_grad=True) for name, column in per_row.items()}
    sizes = torch.tensor([lengths[row] for row in rows])
    leaves = (t["logprobs"], t["entropy"], r["values"])
    seen = TokenView(
        logprobs_T=t["logprobs"],
        behavior_T=t["behavior"].detach(),
        advantages_T=t["advantages"].detach(),
        row_T=torch.repeat_interleave(torch.arange(len(rows)), sizes),
        lengths_R=sizes,
        total_tokens=sum(lengths),
        total_rows=len(lengths),
        tokens={"reference": t["reference"].detach()},
        rows={"returns": r["returns"].detach()},
        entropy_T=t["entropy"],
        values_R=r["values"],
    )
    return seen, leaves


@pytest.mark.parametrize("term", LOSSES, ids=repr)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.lists(st.integers(1, 5), min_size=2, max_size=5), st.data())
def test_losses_are_independent_of_micro_batch_split(term, seed, lengths, data):
    batch, cut = random_batch(seed, lengths), data.draw(st.integers(1, len(lengths) - 1))
    rows = list(range(len(lengths)))

    def whole_or_part(rows):
        seen, leaves = part_of(batch, lengths, rows)
        loss, stats = term(seen)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return loss.item(), [g.numpy() for g in gradients], stats

    loss, gradients, stats = whole_or_part(rows)
    parts = [whole_or_part(rows[:cut]), whole_or_part(rows[cut:])]
    assert loss == pytest.approx(sum(p[0] for p in parts), abs=1e-12)
    for i, gradient in enumerate(gradients):
        np.testing.assert_allclose(gradient, np.concatenate([p[1][i] for p in parts]), atol=1e-12)
    for name, value in stats.items():
        add = max if name.endswith("_max") else sum
        assert float(value) == pytest.approx(float(add(p[2][name] for p in parts)))
