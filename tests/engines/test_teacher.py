"""Self-distillation from a teacher prompt: the local engine compares whole distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.engines.local import model
from tacit.engines.local.engine import MAIN
from tacit.losses.distillation import Divergence


def batch_of(rows, taught=None) -> Batch:
    prompts, completions = rows
    plain = Batch.imitation(prompts, completions)
    longer = [np.concatenate([[7, 8, 9], p]) for p in prompts] if taught is None else taught
    return plain.with_column("teacher_prompts", "prompt", longer)


def gradients(policy, batch, losses) -> dict[str, torch.Tensor]:
    """Gradients of the whole batch, without an optimizer step."""
    learning = policy.engine.make_updater(MAIN)
    kept = [i for i, c in enumerate(batch.completions) if len(c)]
    needs = frozenset().union(*(loss.needs for loss in losses))
    learning.accumulate_gradient(batch, losses, np.array(kept), needs, learning.budget.current)
    found = {name: p.grad.clone() for name, p in learning.weights.master.items() if p.grad is not None}
    learning.weights.zero_grad()
    return found


def reference(policy, batch, kind: str) -> dict[str, torch.Tensor]:
    """Gradients with plain transformers: row by row, all logits at once."""
    hf, total = policy.engine.model.hf, torch.zeros(())
    for prompt, taught, completion in zip(batch.prompts, batch.contexts["teacher_prompts"], batch.completions, strict=True):
        if not len(completion):
            continue

        def logps(read, written=completion):
            ids = torch.tensor(np.concatenate([read, written[:-1]]))[None]
            return hf(input_ids=ids).logits[0, len(read) - 1 :].float().log_softmax(-1)

        p = logps(prompt)
        with torch.no_grad():
            q = logps(taught)
        a, b = (q, p) if kind == "forward" else (p, q)
        total = total + (a.exp() * (a - b)).sum() / batch.total_tokens
    hf.zero_grad()
    total.backward()
    found = {name: p.grad.clone() for name, p in hf.named_parameters() if p.grad is not None}
    hf.zero_grad()
    return found


@pytest.mark.parametrize("kind", ["forward", "reverse"])
def test_gradients_match_plain_transformers(make_policy, rows, kind):
    policy, batch = make_policy(), batch_of(rows)
    ours, theirs = gradients(policy, batch, [Divergence(kind)]), reference(policy, batch, kind)
    assert set(theirs) <= set(ours)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("elements", [1, 300, 5000])
def test_chunked_logits_bound_memory_and_give_the_same_gradients(make_policy, rows, monkeypatch, elements):
    policy, batch = make_policy(), batch_of(rows)
    whole = gradients(policy, batch, [Divergence("jsd")])
    sizes: list[int] = []
    plain = model.LanguageModel.logits

    def watched(self, hidden_TD):
        sizes.append(len(hidden_TD))
        return plain(self, hidden_TD)

    monkeypatch.setitem(model.LOGIT_ELEMENTS, "cpu", elements)
    monkeypatch.setattr(model.LanguageModel, "logits", watched)
    for name, gradient in gradients(policy, batch, [Divergence("jsd")]).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)
    assert max(sizes) <= max(1, elements // policy.engine.model.vocabulary)


def test_gradient_does_not_depend_on_the_token_budget(make_policy, rows):
    batch = batch_of(rows)
    coarse = gradients(make_policy(token_budget=4096), batch, [Divergence("reverse", top_k=5)])
    fine = gradients(make_policy(token_budget=40), batch, [Divergence("reverse", top_k=5)])
    for name, gradient in coarse.items():
        torch.testing.assert_close(fine[name], gradient, atol=1e-6, rtol=1e-4)


def test_teacher_prompts_count_toward_the_token_budget(make_policy, rows, monkeypatch):
    batch = batch_of(rows, taught=[np.concatenate([np.arange(2, 60), p]) for p in rows[0]])
    policy, longest = make_policy(token_budget=100), max(map(len, batch.contexts["teacher_prompts"]))
    most, plain = [0], model.LanguageModel.make_micro_batch

    def watched(self, prompts, completions, part, pad):
        most[0] = max(most[0], sum(len(prompts[r]) + len(completions[r]) for r in part if len(part) > 1))
        return plain(self, prompts, completions, part, pad)

    monkeypatch.setattr(model.LanguageModel, "make_micro_batch", watched)
    gradients(policy, batch, [Divergence("reverse")])
    assert longest > 58 and most[0] <= 100 + max(map(len, rows[1]))


def test_teacher_equal_to_the_student_gives_no_gradient(make_policy, rows):
    batch = batch_of(rows, taught=rows[0])
    for kind in ("forward", "reverse", "jsd"):
        found = gradients(make_policy(), batch, [Divergence(kind)])
        assert max(float(g.abs().max()) for g in found.values()) < 1e-6


def test_shuffled_rows_keep_their_teacher_prompts(make_policy, rows):
    policy, batch = make_policy(), batch_of(rows)
    order = np.array([5, 1, 7, 0, 2, 3, 6, 4])
    straight, shuffled = (gradients(policy, b, [Divergence("forward")]) for b in (batch, batch.select(order)))
    for name, gradient in straight.items():
        torch.testing.assert_close(shuffled[name], gradient, atol=1e-6, rtol=1e-4)


def test_loss_that_needs_a_missing_teacher_is_refused(make_policy, rows):
    @dataclass(frozen=True)
    class Wants:
        needs: ClassVar[frozenset[str]] = frozenset({"teacher"})

        def __call__(self, view):
            return view.compare_with_teacher(lambda p, q: (p - q).sum(-1)).sum(), {}

    with pytest.raises(TacitError, match="no column 'teacher_prompts'"):
        make_policy().update(Batch.imitation(*rows), [Wants()], 1e-3)
