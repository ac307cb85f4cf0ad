"""The propositions of OPID's appendix A on small categorical distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import make_group

from tacit.companions.hindsight import route
from tacit.core.protocols import TokenView
from tacit.core.types import Skills
from tacit.credit.skill_shift import skill_shifts
from tacit.losses.surrogates import ClippedSurrogate

logits = st.lists(st.floats(-3, 3), min_size=4, max_size=4)


def distribution(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).softmax(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p.log() - q.log())).sum()


def skill_loss(p: torch.Tensor, b: torch.Tensor, q: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """−λ E_{a ~ b}[ρ Δ(a)], ρ = p / b, Δ = log q − log b (Eq. 3), as an exact sum."""
    return -weight * (b * (p / b) * (q.log() - b.log())).sum()


@given(logits, logits, logits, st.floats(0.001, 2.0))
@settings(max_examples=60, deadline=None)
def test_proposition_1_skill_loss_is_a_kl_difference(p, b, q, weight):
    p, b, q = map(distribution, (p, b, q))
    torch.testing.assert_close(skill_loss(p, b, q, weight), weight * (kl(p, q) - kl(p, b)))


@given(logits, logits)
@settings(max_examples=40, deadline=None)
def test_skill_loss_equals_reverse_kl_at_the_behavior_policy(b, q):
    z = torch.tensor(b, dtype=torch.float64, requires_grad=True)
    behavior, teacher = distribution(b), distribution(q)
    ours = skill_loss(z.softmax(-1), behavior, teacher)
    direct = kl(z.softmax(-1), teacher)
    torch.testing.assert_close(ours, direct)
    (mine,), (theirs,) = torch.autograd.grad(ours, z), torch.autograd.grad(direct, z)
    torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-7)


class Categorical:
    """Scores a token with b for a one-token prompt (no skill) and with q for a longer one (with skill)."""

    def __init__(self, b: torch.Tensor, q: torch.Tensor) -> None:
        self.b, self.q = b.log().numpy(), q.log().numpy()

    def logprobs(self, prompts, completions, temperature):
        rows = zip(prompts, completions, strict=True)
        return [(self.q if len(prompt) > 1 else self.b)[completion] for prompt, completion in rows]


@given(logits, logits)
@settings(max_examples=20, deadline=None)
def test_skill_shifts_with_clipped_surrogate_give_reverse_kl_gradient(b, q):
    """Exact expectation over tokens drawn from b, credited by `skill_shifts`, through `ClippedSurrogate` at ρ = 1."""
    z = torch.tensor(b, dtype=torch.float64, requires_grad=True)
    behavior, teacher = distribution(b), distribution(q)
    group = make_group([[1] * len(b)])
    assert [step.completion.tokens.tolist() for step in group.steps] == [[0], [1], [2], [3]]
    taught = [[[np.append(step.prompt_tokens, 0)] for step in group.steps]]
    (shift_T,) = skill_shifts([group], taught, Categorical(behavior, teacher))
    loss = z.new_zeros(())
    for token, logprob in enumerate(z.log_softmax(-1)):
        one = TokenView(
            logprobs_T=logprob[None],
            behavior_T=logprob.detach()[None],
            advantages_T=torch.tensor([shift_T[token]], dtype=torch.float64),
            row_T=torch.zeros(1, dtype=torch.int64),
            lengths_R=torch.ones(1, dtype=torch.int64),
            total_tokens=1,
            total_rows=1,
        )
        loss = loss + behavior[token] * ClippedSurrogate()(one)[0]
    (ours,) = torch.autograd.grad(loss, z)
    (reverse,) = torch.autograd.grad(kl(z.softmax(-1), teacher), z)
    torch.testing.assert_close(ours, reverse, atol=1e-9, rtol=1e-7)


def test_corollary_1_difference_is_half_the_fisher_term():
    b = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64)
    q = distribution([1.0, 0.2, -0.7])
    p0 = b.softmax(-1)
    fisher = torch.diag(p0) - p0[:, None] * p0[None]  # of free logits
    direction = torch.tensor([0.7, -0.2, 0.4], dtype=torch.float64)
    errors = []
    for size in (1e-1, 1e-2):
        step = size * direction
        p = (b + step).softmax(-1)
        predicted = kl(p, q) - 0.5 * step @ fisher @ step
        errors.append(float((skill_loss(p, p0, q) - predicted).abs()) / size**2)
    assert errors[1] < errors[0] / 5, "what is left must vanish faster than the square"


@given(logits, logits, logits, st.floats(0.01, 1.0), st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_corollary_2_matching_kl_penalty_gives_reverse_kl(p, b, q, weight, beta):
    p, b, q = map(distribution, (p, b, q))
    regularised = skill_loss(p, b, q, weight) + beta * kl(p, b)
    torch.testing.assert_close(regularised, weight * kl(p, q) + (beta - weight) * kl(p, b))
    torch.testing.assert_close(skill_loss(p, b, q, weight) + weight * kl(p, b), weight * kl(p, q))


@given(logits, logits)
@settings(max_examples=40, deadline=None)
def test_corollary_3_gradient_is_nonzero_unless_teacher_equals_policy(b, q):
    z = torch.tensor(b, dtype=torch.float64, requires_grad=True)
    behavior, teacher = distribution(b), distribution(q)
    shift = teacher.log() - behavior.log()
    (gradient,) = torch.autograd.grad(skill_loss(z.softmax(-1), behavior, teacher), z)
    torch.testing.assert_close(gradient, -(behavior * (shift - (behavior * shift).sum())), atol=1e-12, rtol=1e-9)
    assert (gradient.abs().max() < 1e-12) == (float((teacher - behavior).abs().max()) < 1e-12)


def test_two_token_skill_loss_is_minimized_at_a_vertex():
    """The skill loss is linear in p and wants all mass on one token; the reverse KL wants p = q."""
    b, q = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0.75, 0.25], dtype=torch.float64)
    at = lambda first: torch.tensor([first, 1 - first], dtype=torch.float64)  # noqa: E731
    for first in (0.1, 0.4, 0.75, 0.99):
        assert float(skill_loss(at(first), b, q)) == pytest.approx(first * math.log(2 / 3) + (1 - first) * math.log(2))
    losses = [float(skill_loss(at(first), b, q)) for first in (0.25, 0.5, 0.75, 0.9, 0.999)]
    assert losses == sorted(losses, reverse=True), "the nearer to one token, the lower"
    direct = {first: float(kl(at(first), q)) for first in (0.25, 0.5, 0.75, 0.9, 0.999)}
    assert min(direct, key=direct.get) == 0.75


def test_proposition_3_bounds_the_cost_of_wrong_routing():
    """E_route = min(E_ep, E_step) + 1{ẑ ≠ z*} |E_ep − E_step|. The expected excess is at most Γ · P(wrong).

    E is the KL from a target distribution to the policy with the episode's or the step's skill. `route` picks the skill.
    """
    draw = torch.Generator().manual_seed(0)
    target, q_episode, q_step = (torch.randn(200, 4, generator=draw, dtype=torch.float64).softmax(-1) for _ in range(3))
    episode, step = ((target * (target.log() - q.log())).sum(-1) for q in (q_episode, q_step))
    critical = step <= episode  # specialization (Eq. 16): the better teacher
    for share_wrong in (0.0, 0.2, 0.7):
        wrong = torch.rand(200, generator=draw) < share_wrong
        skills = Skills("in all", {t: "now" for t, is_it in enumerate(critical ^ wrong) if is_it})
        lessons = [route(skills, t, "critical_first")[0] for t in range(200)]
        chosen = torch.stack([step[t] if lesson.step else episode[t] for t, lesson in enumerate(lessons)])
        torch.testing.assert_close(chosen, torch.minimum(episode, step) + wrong * (episode - step).abs())
        gap = (episode - step).abs().max()
        assert chosen.mean() <= torch.minimum(episode.mean(), step.mean()) + gap * wrong.double().mean() + 1e-12
