"""Fused linear log-softmax: kernels against the formula, and the pass around them."""

from __future__ import annotations

import pytest
import torch
from interpreted import assert_interpreted

from tacit.core.errors import TacitError
from tacit.engines.local import scoring
from tacit.engines.local.fast import cross_entropy
from tacit.engines.local.fast.cross_entropy import has_logprob_kernels
from tacit.engines.local.model import LOGIT_ELEMENTS
from tacit.engines.local.scoring import token_logprobs

AGREE = """
import torch
from tacit.engines.local.fast import cross_entropy as head
from tacit.engines.local.fast.cross_entropy import LogprobTargets
for dtype in (torch.float32, torch.bfloat16):
    assert head._matches_torch(torch.device("cpu"), dtype), dtype
"""

# Against torch's own gradient in float64, through the head, in chunks and in one; bfloat16 rounds the gradient of logits only.
FROM_THE_HEAD = """
import torch
from tacit.engines.local.fast import cross_entropy as head
from tacit.engines.local.fast.cross_entropy import LogprobTargets
head.BLOCK, head.BACKWARD_BLOCK = 32, 64
generator = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    hidden, weight = (torch.randn(n, 16, generator=generator).to(dtype).requires_grad_() for n in (11, 203))
    targets = torch.randint(0, 203, (11,), generator=generator)
    pulls = torch.randn(2, 11, generator=generator)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    for temperature in (1.0, 0.6):
        logps = torch.log_softmax(exact[0] @ exact[1].t() / temperature, -1)
        expected = logps.gather(1, targets[:, None])[:, 0]
        expected_entropy = -(logps.exp() * logps).sum(-1)
        for mode in ("none", "value", "gradient"):
            for size in (4, 11, 100):
                logprobs, entropy = head.fused_linear_logprobs(hidden, weight, LogprobTargets(targets, temperature, mode, size))
                torch.testing.assert_close(logprobs.double(), expected, atol=1e-5, rtol=1e-5)
                assert (entropy is None) == (mode == "none")
                total, exact_total = (logprobs * pulls[0]).sum(), (expected * pulls[0]).sum()
                if entropy is not None:
                    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-5, rtol=1e-5)
                    assert entropy.requires_grad == (mode == "gradient")
                if mode == "gradient":
                    total, exact_total = total + (entropy * pulls[1]).sum(), exact_total + (expected_entropy * pulls[1]).sum()
                found = torch.autograd.grad(total, (hidden, weight))
                products, wide = [], head.linear_float32
                head.linear_float32 = lambda *given: products.append(0) or wide(*given)
                of_frozen = LogprobTargets(targets, temperature, mode, size)
                frozen, also = head.fused_linear_logprobs(hidden, weight.detach(), of_frozen)
                before = len(products)
                assert torch.equal(frozen, logprobs) and (also is None or torch.equal(also, entropy))
                total = (frozen * pulls[0]).sum() + ((also * pulls[1]).sum() if mode == "gradient" else 0)
                found = (*found, *torch.autograd.grad(total, hidden))  # of a head that is not trained
                head.linear_float32, chunks = wide, -(-11 // size)
                again = chunks if mode == "gradient" and chunks > 1 else 0  # logits that are computed again
                assert (before, len(products) - before) == (chunks if mode == "gradient" else 2 * chunks, again)
                wanted = torch.autograd.grad(exact_total, exact, retain_graph=True)
                for ours, theirs in zip(found, (*wanted, wanted[0]), strict=True):
                    assert ours.dtype == dtype
                    far = (ours.double() - theirs).norm() / theirs.norm()
                    assert far < (1e-5 if dtype == torch.float32 else 1e-2), (dtype, mode, size, far)
logprobs, entropy = head.fused_linear_logprobs(hidden, weight.detach(), LogprobTargets(targets, 1.0, "gradient", 4))
assert torch.autograd.grad(entropy.sum(), hidden)[0].abs().max() > 0  # by itself, of a frozen head
for of_head in (weight, weight.detach()):
    logprobs, _ = head.fused_linear_logprobs(hidden[:0], of_head, LogprobTargets(targets[:0], 1.0, "value", 4))
    assert logprobs.shape == (0,)
    torch.autograd.grad(logprobs.sum(), hidden)
with torch.no_grad():
    pull, head.logprob_backward = head.logprob_backward, None  # nothing is prepared for a gradient that cannot be asked for
    assert not head.fused_linear_logprobs(hidden, weight.detach(), LogprobTargets(targets, 1.0, "none", 4))[0].requires_grad
    head.logprob_backward = pull
# A token that is as good as certain: of 1 − π little is left, and that is not rounded away with the head's product.
sure = torch.zeros(1, 16, dtype=torch.bfloat16); sure[0, 0] = 1
large = torch.randn(203, 16, generator=generator).to(torch.bfloat16); large[:, 0] = 0; large[5, 0] = 16
sure.requires_grad_()
logprobs, _ = head.fused_linear_logprobs(sure, large, LogprobTargets(torch.tensor([5]), 1.0, "value", 4))
wide = sure.detach().double().requires_grad_()
expected = torch.log_softmax(wide @ large.double().t(), -1)[0, 5]
ours, theirs = torch.autograd.grad(logprobs.sum(), sure)[0].double(), torch.autograd.grad(expected, wide)[0]
assert 0 < -float(expected) < 1e-4 and (ours - theirs).norm() < 1e-2 * theirs.norm()
"""

# Two likely tokens of log 3 and log 1: π = ¾, ¼; at T = ½ nine to one. What is −∞ is no token, and NaN is not hidden.
BY_HAND = """
import torch
from math import inf, log, nan
from tacit.engines.local.fast import cross_entropy as head
from tacit.engines.local.fast.cross_entropy import LogprobTargets
logits = torch.tensor([[-inf, log(3.0), -inf, 0.0], [0.0] * 4, [nan, 0.0, 0.0, 0.0], [inf, 0.0, 0.0, 0.0], [-inf] * 4])
targets = torch.tensor([1, 2, 1, 1, 0])
for temperature, likely in ((1.0, 0.75), (0.5, 0.9)):
    logprobs, normers, entropy = torch.empty(3, 5)
    head.logprob_forward(logits, targets, temperature, True, logprobs, normers, entropy)
    torch.testing.assert_close(logprobs[:2], torch.tensor([log(likely), -log(4)]))
    torch.testing.assert_close(entropy[:2], torch.tensor([-likely * log(likely) - (1 - likely) * log(1 - likely), log(4)]))
    assert not logprobs[2:].isfinite().any() and not entropy[2:].isfinite().any()
    found = head.logprob_backward(logits, targets, temperature, normers, entropy, torch.ones(5), torch.ones(5), torch.float32)
    rest = 1 - likely
    slope = rest - likely * (log(likely) + entropy[0])
    torch.testing.assert_close(found[0], torch.tensor([0.0, slope, 0.0, -slope]) / temperature)
    assert found[2].isnan().all()
"""


@pytest.mark.parametrize("program", [AGREE, FROM_THE_HEAD, BY_HAND])
def test_the_interpreted_kernels_compute_what_they_should(program) -> None:
    assert_interpreted(program)


def _weighed(logits, targets, temperature, entropy, logprobs, normers, entropies) -> None:
    logps = torch.log_softmax(logits / temperature, -1)
    logprobs.copy_(logps.gather(1, targets[:, None])[:, 0])
    normers.copy_((logits / temperature).logsumexp(-1))
    entropies.copy_(-(logps.exp() * logps).sum(-1))


def _pulled(logits, targets, temperature, normers, entropies, of_logprobs, of_entropies, dtype) -> torch.Tensor:
    logps = logits / temperature - normers[:, None]
    chosen = torch.zeros_like(logits).scatter_(1, targets[:, None], 1.0)
    found = of_logprobs[:, None] * (chosen - logps.exp())
    if of_entropies is not None:
        found -= of_entropies[:, None] * logps.exp() * (logps + entropies[:, None])
    return (found / temperature).to(dtype)


@pytest.fixture
def kernels(monkeypatch):
    """What the kernels compute, in torch's operations. How many rows each launch had."""
    launched: list[int] = []
    monkeypatch.setattr(scoring, "has_logprob_kernels", lambda *known: True)
    for name, plain in (("logprob_forward", _weighed), ("logprob_backward", _pulled)):
        monkeypatch.setattr(
            cross_entropy, name, lambda logits, *rest, plain=plain: launched.append(len(logits)) or plain(logits, *rest)
        )
    return launched


def test_scores_and_gradients_are_those_of_the_whole_distribution(make_policy, kernels, monkeypatch) -> None:
    model, targets_T, results = make_policy().engine.model, torch.arange(2, 39), []
    assert model.linear_head is model.head.weight
    for with_kernels, elements in ((True, 1 << 30), (True, 5 * model.vocabulary), (False, 1 << 30)):
        monkeypatch.setattr(scoring, "has_logprob_kernels", lambda *known, with_kernels=with_kernels: with_kernels)
        monkeypatch.setitem(LOGIT_ELEMENTS, "cpu", elements)
        hidden_TD = torch.randn(37, model.width, generator=torch.Generator().manual_seed(0)).requires_grad_()
        logprobs_T, entropy_T = token_logprobs(model, hidden_TD, targets_T, 0.8, "gradient")
        assert entropy_T is not None
        read = (hidden_TD, model.head.weight)
        results.append((logprobs_T, entropy_T, *torch.autograd.grad(logprobs_T.sum() + 0.3 * entropy_T.sum(), read)))
    for found in results[:2]:
        torch.testing.assert_close(found, results[2], atol=1e-5, rtol=1e-4)
    assert kernels == [37, 37, *[5] * 7, 2, *[5] * 7, 2]
    with pytest.raises(TacitError, match="temperature above 0"):
        token_logprobs(model, hidden_TD, targets_T, 0.0)


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"lora_rank": 4, "lora_targets": ("q_proj", "lm_head")}])
def test_a_policy_learns_and_scores_alike_with_them(make_policy, rows, kernels, monkeypatch, settings) -> None:
    """A head with an adapter speaks for itself."""
    import numpy as np

    from tacit.core.credit import Batch
    from tacit.losses.surrogates import Imitation

    batch, moved, launches = Batch.imitation(*rows), [], []
    for with_kernels in (True, False):
        monkeypatch.setattr(scoring, "has_logprob_kernels", lambda *known, with_kernels=with_kernels: with_kernels)
        policy = make_policy(**settings)
        metrics = policy.update(batch, [Imitation()], 1e-2)
        moved.append((metrics["loss"], metrics["grad_norm"], metrics["entropy"], *policy.logprobs(*rows)))
        launches.append(len(kernels))
    assert launches[0] == launches[1] and bool(launches[0]) == ("lm_head" not in settings.get("lora_targets", ()))
    for ours, theirs in zip(*moved, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_cpu_has_no_such_kernels() -> None:
    assert not has_logprob_kernels(torch.device("cpu"), torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_can_compile_has_them() -> None:
    pytest.importorskip("triton")
    assert all(has_logprob_kernels(torch.device("cuda"), dtype) for dtype in (torch.bfloat16, torch.float32))
