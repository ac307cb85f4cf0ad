"""PolicyGradient and SampledPenalty: Eq. 9 by hand, and the gradient of the published penalty."""

from __future__ import annotations

import math

import pytest
import torch

from tacit.core.protocols import TokenView
from tacit.losses.surrogates import PolicyGradient, ReferenceKL, SampledPenalty


def view(logprobs, advantages, lengths, reference=None, total_rows=None) -> TokenView:
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor(lengths)
    return TokenView(
        logprobs_T=logprobs,
        behavior_T=logprobs.detach().clone(),
        advantages_T=torch.tensor(advantages, dtype=torch.float64),
        row_T=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        lengths_R=lengths,
        total_tokens=len(logprobs),
        total_rows=total_rows or len(lengths),
        tokens={} if reference is None else {"reference": torch.tensor(reference, dtype=torch.float64)},
    )


def loss_and_gradient(term, seen):
    loss, _ = term(seen)
    (gradient,) = torch.autograd.grad(loss, seen.logprobs_T)
    return loss.item(), gradient.tolist()


def test_policy_gradient_sums_tokens_and_averages_actions():
    """log π = −3 with A = 2, and −0.5 with A = −1: L = −(2·(−3) + (−1)·(−0.5)) / 2."""
    loss, gradient = loss_and_gradient(PolicyGradient(), view([-1.0, -2.0, -0.5], [2.0, 2.0, -1.0], [2, 1]))
    assert loss == pytest.approx(2.75) and gradient == pytest.approx([-1.0, -1.0, 0.5])


def test_sampled_penalty_matches_hand_computed_value():
    """Differences 1, −1 and 0.5 over two actions: 0.02 · 0.5 / 2."""
    seen = view([-1.0, -2.0, -0.5], [0.0] * 3, [2, 1], reference=[-2.0, -1.0, -1.0])
    loss, stats = SampledPenalty(0.02)(seen)
    assert loss.item() == pytest.approx(0.02 * 0.5 / 2)
    assert stats["reference_kl"].item() == pytest.approx(0.5) and not stats["reference_kl"].requires_grad


def test_sampled_penalty_gradient_is_independent_of_the_reference():
    """It is β / rows for every token. The gradient of k3 has the sign of the difference and is zero if they are equal."""
    for reference in ([-1.0, -2.0], [-3.0, -0.1]):
        _, gradient = loss_and_gradient(SampledPenalty(0.1), view([-1.0, -2.0], [0.0] * 2, [2], reference))
        assert gradient == pytest.approx([0.1, 0.1])
    _, same = loss_and_gradient(ReferenceKL(0.1), view([-1.0, -2.0], [0.0] * 2, [2], [-1.0, -2.0]))
    _, other = loss_and_gradient(ReferenceKL(0.1), view([-1.0, -2.0], [0.0] * 2, [2], [-2.0, -1.0]))
    assert same == pytest.approx([0.0, 0.0]) and other[0] > 0 > other[1]


def test_expected_sampled_penalty_gradient_is_zero():
    """E_{a ~ π}[∇ log π(a)] = 0 for a softmax."""
    logits = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)
    reference = torch.tensor([-0.1, -3.0, -5.0], dtype=torch.float64)
    seen = view([0.0], [0.0], [1])
    total = logits.new_zeros(())
    for action in range(3):
        one = TokenView(
            **{
                **vars(seen),
                "logprobs_T": logprobs[action : action + 1],
                "tokens": {"reference": reference[action : action + 1]},
            }
        )
        total = total + logprobs[action].exp().detach() * SampledPenalty(1.0)(one)[0]
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.abs().max().item() < 1e-12
    assert total.item() == pytest.approx((logprobs.exp() * (logprobs - reference)).sum().item()), "its value is the KL"


def test_sampled_penalty_under_top_p_pushes_kept_tokens_down():
    """E_{a ~ q}[−∇ log π(a)] = π − q on the logits, where q is the renormalized nucleus of π. So it is not zero."""
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    pi = logits.softmax(0).detach()
    q = torch.where(pi.cumsum(0) - pi < 0.9, pi, torch.zeros_like(pi))
    q = q / q.sum()
    logprobs, seen, total = logits.log_softmax(0), view([0.0], [0.0], [1]), logits.new_zeros(())
    for action in range(len(pi)):
        fields = {
            "logprobs_T": logprobs[action : action + 1],
            "tokens": {"reference": (logprobs[action : action + 1] - 1).detach()},
        }
        total = total + q[action] * SampledPenalty(1.0)(TokenView(**{**vars(seen), **fields}))[0]
    (gradient,) = torch.autograd.grad(total, logits)
    down = -gradient  # where the descent of the penalty moves the logits
    assert down.tolist() == pytest.approx((pi - q).tolist())
    assert (down[q > 0] < 0).all() and (down[q == 0] > 0).all()


def test_reference_kl_over_actions_sums_tokens():
    """As a mean over tokens, β is divided by the action's length: eight tokens, an eighth of the gradient."""
    seen = view([-1.0] * 8, [1.0] * 8, [8], reference=[-1.1] * 8)
    _, (per_token, *_) = loss_and_gradient(ReferenceKL(0.02), seen)
    _, (per_action, *_) = loss_and_gradient(ReferenceKL(0.02, over="actions"), seen)
    assert per_action == pytest.approx(8 * per_token) == pytest.approx(0.02 * (1 - math.exp(-0.1)))


@pytest.mark.parametrize("term", [PolicyGradient(), SampledPenalty(0.5), ReferenceKL(0.5, over="actions")])
def test_losses_of_micro_batches_add_up(term):
    whole, _ = term(view([-1.0, -2.0, -0.5], [2.0, 2.0, -1.0], [2, 1], reference=[-1.5, -1.0, -1.0]))
    first, _ = term(view([-1.0, -2.0], [2.0, 2.0], [2], reference=[-1.5, -1.0], total_rows=2))
    second, _ = term(view([-0.5], [-1.0], [1], reference=[-1.0], total_rows=2))
    assert (first + second).item() == pytest.approx(whole.item())
