"""Distillation losses on a few tokens: hand-computed values, limit cases, explicit sums over a vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from test_losses import loss_and_gradient, view

from tacit.losses.distillation import Divergence, GatedLikelihood, SampledReverseKL, SkillK3

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)


def taught(logprobs, teacher, **more):
    return view(logprobs, tokens={"teacher_logprobs": torch.tensor(teacher, dtype=torch.float64)}, **more)


def plain_kl(p, q):
    return sum(float(a) * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("row", [0, 1])
def test_divergences_match_explicit_sums(row):
    p, q = P[row], Q[row]
    between = lambda kind, **more: float(Divergence(kind, **more).between(p.log()[None], q.log()[None]))  # noqa: E731
    assert between("forward") == pytest.approx(plain_kl(q, p))
    assert between("reverse") == pytest.approx(plain_kl(p, q))
    m = 0.3 * q + 0.7 * p
    assert between("jsd", alpha=0.3) == pytest.approx(0.3 * plain_kl(q, m) + 0.7 * plain_kl(p, m))
    half = between("jsd")
    assert 0 < half < math.log(2)


@pytest.mark.parametrize("support", ["student", "teacher"])
def test_top_k_renormalizes_over_kept_tokens(support):
    p, q = P[0], Q[0]
    kept = [0, 1] if support == "student" else [1, 2]
    a, b = p[kept] / p[kept].sum(), q[kept] / q[kept].sum()
    actual = float(Divergence("reverse", top_k=2, support=support).between(p.log()[None], q.log()[None]))
    assert actual == pytest.approx(plain_kl(a, b))


def test_top_k_of_full_vocabulary_equals_no_top_k():
    whole = Divergence("reverse").between(P.log(), Q.log())
    torch.testing.assert_close(Divergence("reverse", top_k=3).between(P.log(), Q.log()), whole)
    torch.testing.assert_close(Divergence("reverse", top_k=99).between(P.log(), Q.log()), whole)


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_divergence_gradient_is_zero_if_teacher_equals_student(kind):
    z = torch.tensor([[0.4, -0.2, 1.1]], dtype=torch.float64, requires_grad=True)
    same = z.detach().log_softmax(-1)
    for top_k in (0, 2):
        value = Divergence(kind, top_k=top_k).between(z.log_softmax(-1), same).sum()
        (gradient,) = torch.autograd.grad(value, z)
        assert abs(value.item()) < 1e-12 and float(gradient.abs().max()) < 1e-12


def test_sampled_reverse_kl_gradient_is_unbiased():
    """The gradient, averaged over samples from p, is that of the reverse KL."""
    z = torch.tensor([0.4, -0.2, 1.1], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    p = z.detach().softmax(-1)
    total = torch.zeros(3, dtype=torch.float64)
    for a in range(3):
        seen = taught([float(p[a].log())], [float(q[a].log())])
        _, (slope,) = loss_and_gradient(SampledReverseKL(), seen)
        (score,) = torch.autograd.grad(z.log_softmax(-1)[a], z)
        total += p[a] * slope * score
    (expected,) = torch.autograd.grad((z.softmax(-1) * (z.log_softmax(-1) - q.log())).sum(), z)
    torch.testing.assert_close(total, expected)


def test_sampled_and_k3_vanish_if_teacher_equals_student():
    for term in (SampledReverseKL(), SkillK3()):
        value, gradient = loss_and_gradient(term, taught([-0.7, -1.3], [-0.7, -1.3]))
        assert value == pytest.approx(0.0, abs=1e-12) and gradient == pytest.approx([0.0, 0.0], abs=1e-12)


def test_k3_matches_hand_computed_value():
    value, _ = loss_and_gradient(SkillK3(weight=2.0), taught([-1.0], [-0.4], behavior=[-1.2]))
    assert value == pytest.approx(2.0 * math.exp(0.2) * (math.exp(0.6) - 1 - 0.6))


def test_k3_gradient_includes_ratio_and_exponents_are_clamped():
    """d/dx of e^(x − b) (e^(q − x) − 1 + x − q) = ρ (k3 + 1 − e^(q − x))"""
    value, gradient = loss_and_gradient(SkillK3(weight=1.0), taught([-1.0], [-0.4], behavior=[-1.2]))
    ratio = math.exp(0.2)
    assert gradient == pytest.approx([value + ratio * (1 - math.exp(0.6))])
    far, _ = loss_and_gradient(SkillK3(weight=1.0), taught([-500.0], [0.0], behavior=[-500.0]))
    assert far == pytest.approx(math.exp(20.0) - 1 - 500.0)
    near, _ = loss_and_gradient(SkillK3(weight=1.0), taught([0.0], [-1.0], behavior=[-500.0]))
    assert near == pytest.approx(math.exp(10.0) * (math.exp(-1.0) - 1 + 1))


def test_gated_likelihood_matches_hand_computed_values():
    value, gradient = loss_and_gradient(GatedLikelihood(weight=0.1, beta=5.0), taught([-1.0], [-0.8]))
    gate = 1 / (1 + math.exp(-5 * 0.2))
    assert value == pytest.approx(0.1 * gate * 0.2) and gradient == pytest.approx([-0.1 * gate])
    _, same = loss_and_gradient(GatedLikelihood(weight=0.1, beta=5.0), taught([-1.0], [-1.0]))
    assert same == pytest.approx([-0.05]), "half a likelihood remains: nothing is ever made less likely"
    _, worse = loss_and_gradient(GatedLikelihood(weight=0.1, beta=5.0), taught([-1.0], [-9.0]))
    assert 0 > worse[0] > -1e-3, "all but closed, and still not the other way"
    _, released = loss_and_gradient(GatedLikelihood(weight=0.1, beta=0.0), taught([-1.0], [-3.0]))
    assert released == pytest.approx([-0.05]), "GRPO+OPSD as released does not ask the teacher at all"
