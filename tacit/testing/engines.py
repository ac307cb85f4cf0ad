"""Conformance tests for engines. They use the protocols only, so your own engine can run them too.

    from tacit.testing.engines import EngineConformance

    class TestMine(EngineConformance):
        engine = ENGINE                                       # your tacit.core.protocols.Engine

        def settings(self, **options):                        # your settings with the options of a test (`OPTIONS`)
            return Settings(device="cpu", **options)

A test is skipped only if it needs a capability that `Engine.capabilities` does not declare. The reference is the same
checkpoint in plain transformers, float64 on the CPU: log-probabilities, hidden states and AdamW steps must agree.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.core.protocols import (
    ADAPTERS,
    DISTRIBUTIONS,
    ENTROPY,
    GRADIENTS,
    HIDDEN_STATES,
    LEARNING,
    REFERENCE,
    SAMPLING,
    SCORING,
    VALUES,
    Critic,
    Encoder,
    Engine,
    GradientScorer,
    Learner,
    ModelSource,
    Policy,
    Request,
    Sampler,
    Sampling,
    SchedulingSampler,
    Scorer,
    Tokenizer,
)
from tacit.core.types import Completion, HiddenState
from tacit.engines.models.tiny import TinySettings, tiny_checkpoint

OPTIONS = {
    "value_head": "True if the test needs values",
    "lora_rank": "rank of the adapters, if the test needs adapters; absent or 0: train all parameters",
    "token_budget": "tokens per pass, to force micro-batches; an engine without micro-batches may ignore it",
}
"""options that a test may pass to `settings`"""
LR = 1e-3


@dataclass(frozen=True)
class Weighted:
    """−scale · Σ A log π / total tokens, plus an entropy bonus and a value loss if `needs` names them."""

    needs: frozenset[str] = frozenset()
    scale: float = 1.0

    def __call__(self, view: Any) -> tuple[Any, dict[str, Any]]:
        loss = -(view.advantages_T * view.logprobs_T).sum() / view.total_tokens
        if "entropy" in self.needs:
            loss = loss - 0.1 * view.entropy_T.sum() / view.total_tokens
        if "values" in self.needs:
            loss = loss + ((view.values_R - 1.0) ** 2).sum() / view.total_rows
        return self.scale * loss, {}


class EngineConformance:
    """Subclass it, name the class Test…, and run pytest."""

    engine: ClassVar[Engine]
    tolerance: ClassVar[float] = 1e-4
    """largest difference of a log-probability from the float64 reference; an engine in bfloat16 needs more"""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)
    weight_decay: ClassVar[float] = 0.01
    """of AdamW, on matrices; vectors are not decayed"""
    clip_norm: ClassVar[float] = 1.0

    def settings(self, **options: Any) -> Any:
        """The engine's settings with the options of a test (`OPTIONS`)."""
        return self.engine.settings(**options)

    # Fixtures

    @pytest.fixture(scope="class")
    def checkpoint(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A small model with random weights and a tokenizer, as a transformers directory."""
        from tacit.testing.engines import small_checkpoint

        return small_checkpoint(tmp_path_factory.mktemp("checkpoint"))

    @pytest.fixture(scope="class")
    def plain(self, checkpoint: Path) -> PlainModel:
        return PlainModel(checkpoint)

    @pytest.fixture(scope="class")
    def rows(self, plain: PlainModel) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(prompts, completions) of different lengths; one completion has one token, one is empty."""
        draw = np.random.default_rng(0)

        def tokens(*lengths: int) -> list[np.ndarray]:
            return [draw.integers(2, plain.vocabulary, size=(n,)) for n in lengths]

        return tokens(5, 31, 12, 12, 3, 20, 1, 9), tokens(4, 7, 1, 12, 0, 5, 9, 2)

    @pytest.fixture()
    def batch(self, rows: tuple[list[np.ndarray], list[np.ndarray]]) -> Batch:
        draw = np.random.default_rng(1)
        weights = [draw.normal(size=len(completion)) for completion in rows[1]]
        return replace(Batch.imitation(*rows), advantages=weights, sampled=True, behavior=[0 * w - 1.0 for w in weights])

    @contextmanager
    def policy(self, checkpoint: Path, **options: Any) -> Iterator[Policy]:
        """A fresh policy, closed at the end."""
        loaded = self.engine.load(ModelSource(str(checkpoint), seed=3), self.settings(**options))
        with closing(loaded):
            yield loaded

    def need(self, *capabilities: str) -> None:
        missing = sorted(set(capabilities) - self.engine.capabilities)
        if missing:
            pytest.skip(f"engine {self.engine.name!r} does not declare {', '.join(missing)}")

    # Declared capabilities

    def test_implements_the_protocols_it_declares(self, checkpoint: Path) -> None:
        says = {SAMPLING: Sampler, SCORING: Scorer, HIDDEN_STATES: Encoder, VALUES: Critic, LEARNING: Learner}
        says[GRADIENTS] = GradientScorer
        with self.policy(checkpoint) as policy:
            assert isinstance(policy, Tokenizer) and policy.context_limit > 0
            for capability in says.keys() & self.engine.capabilities:
                assert isinstance(policy, says[capability]), capability

    def test_tokenizer_round_trips_text(self, checkpoint: Path, plain: PlainModel) -> None:
        with self.policy(checkpoint) as policy:
            text = "go to drawer 4"
            completion = policy.encode_completion(text)
            assert text in policy.decode(completion) and completion[-1] in plain.ends
            assert len(policy.encode_prompt(text)) >= 1

    # Scoring

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_log_probabilities_equal_transformers(self, checkpoint, plain, rows, temperature: float) -> None:
        self.need(SCORING)
        with self.policy(checkpoint) as policy:
            actual = policy.logprobs(rows[0], rows[1], temperature)
        self.near(actual, plain.logprobs(rows[0], rows[1], temperature))

    def test_distributions_equal_transformers(self, checkpoint, plain, rows) -> None:
        self.need(DISTRIBUTIONS)
        with self.policy(checkpoint) as policy:
            whole, few = policy.distributions(*rows), policy.distributions(rows[0], rows[1], 3)
        for (ids, logps), (best, best_logps), truth in zip(whole, few, plain.distributions(*rows), strict=True):
            assert ids.shape == logps.shape == truth.shape and best.shape == (len(truth), 3)
            for t in range(len(truth)):
                np.testing.assert_allclose(logps[t], truth[t][ids[t]], atol=self.tolerance)
                np.testing.assert_allclose(best_logps[t], np.sort(truth[t])[::-1][:3], atol=self.tolerance)

    @pytest.mark.parametrize("pooling", ["last", "mean"])
    def test_hidden_states_equal_transformers(self, checkpoint, plain, rows, pooling: str) -> None:
        self.need(HIDDEN_STATES)
        with self.policy(checkpoint) as policy:
            for layer in (1, -1):
                actual = policy.hidden_states(rows[0], layer, pooling)
                np.testing.assert_allclose(actual, plain.hidden_states(rows[0], layer, pooling), atol=10 * self.tolerance)
            with pytest.raises(TacitError):
                policy.check_layer(99)

    # Sampling

    def test_sampled_log_probabilities_equal_scoring(self, checkpoint, plain, rows) -> None:
        self.need(SAMPLING)
        with self.policy(checkpoint) as policy:
            done = policy.sample([Request(p, seed=i) for i, p in enumerate(rows[0])], Sampling(0.8, max_tokens=9))
        for completion in done:
            assert len(completion.tokens) == len(completion.logprobs) <= 9
        self.near([c.logprobs for c in done], plain.logprobs(rows[0], [c.tokens for c in done], temperature=0.8))

    def test_temperature_zero_is_greedy(self, checkpoint, plain, rows) -> None:
        self.need(SAMPLING)
        with self.policy(checkpoint) as policy:
            done = policy.sample([Request(p) for p in rows[0]], Sampling(temperature=0.0, max_tokens=6))
        for prompt, completion in zip(rows[0], done, strict=True):
            truth = plain.distributions([prompt], [completion.tokens])[0]
            chosen = truth[np.arange(len(completion.tokens)), completion.tokens]
            np.testing.assert_allclose(chosen, truth.max(-1), atol=self.tolerance)

    def test_sample_depends_only_on_its_seed(self, checkpoint, rows) -> None:
        self.need(SAMPLING)
        sampling = Sampling(max_tokens=12)
        with self.policy(checkpoint) as policy:
            together = policy.sample([Request(p, seed=i) for i, p in enumerate(rows[0])], sampling)
            backwards = policy.sample([Request(p, seed=i) for i, p in reversed(list(enumerate(rows[0])))], sampling)[::-1]
            alone = [policy.sample([Request(p, seed=i)], sampling)[0] for i, p in enumerate(rows[0])]
            other = policy.sample([Request(p, seed=100 + i) for i, p in enumerate(rows[0])], sampling)
        for a, b, c in zip(together, backwards, alone, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist() == c.tokens.tolist()
        assert any(a.tokens.tolist() != b.tokens.tolist() for a, b in zip(together, other, strict=True))

    def test_first_token_frequencies_match_probabilities(self, checkpoint, plain, rows) -> None:
        """χ² test over the ten likeliest tokens and the rest, 1,500 draws; false alarm rate 10⁻⁶."""
        self.need(SAMPLING)
        from scipy.stats import chi2

        prompt, draws = rows[0][1], 1500
        with self.policy(checkpoint) as policy:
            done = policy.sample([Request(prompt, seed=i) for i in range(draws)], Sampling(max_tokens=1))
        shares = np.exp(plain.distributions([prompt], [np.array([2])])[0][0])
        likeliest = np.argsort(-shares)[:10]
        counts = np.bincount([c.tokens[0] for c in done], minlength=len(shares))
        seen = np.append(counts[likeliest], draws - counts[likeliest].sum())
        due = draws * np.append(shares[likeliest], 1 - shares[likeliest].sum())
        assert ((seen - due) ** 2 / due).sum() < chi2.isf(1e-6, len(due) - 1)

    def test_completions_stop_at_stop_conditions(self, checkpoint, plain, rows) -> None:
        self.need(SAMPLING)
        with self.policy(checkpoint) as policy:
            requests = [Request(rows[0][0], seed=1, max_tokens=2), Request(rows[0][0], seed=1)]
            short, long = policy.sample(requests, Sampling(max_tokens=5))
            assert len(short.tokens) <= 2 and len(long.tokens) <= 5 and long.tokens[:2].tolist() == short.tokens.tolist()
            assert (short.finish == "length") == (short.tokens[-1] not in plain.ends)
            text = policy.sample([Request(rows[0][0], seed=4)], Sampling(max_tokens=24))[0].text
            stop = text[len(text) // 2 :][:2]
            if stop:
                cut = policy.sample([Request(rows[0][0], seed=4)], Sampling(max_tokens=24, stop=(stop,)))[0]
                assert cut.finish == "stop" and stop in cut.text and text.startswith(cut.text)

    def test_scheduler_equals_sample(self, checkpoint, rows) -> None:
        """Submits requests while others are running, and closes a scheduler with a request pending."""
        self.need(SAMPLING)
        requests, sampling = [Request(p, seed=i) for i, p in enumerate(rows[0])], Sampling(max_tokens=12)
        with self.policy(checkpoint) as policy:
            if not isinstance(policy, SchedulingSampler):
                pytest.skip(f"engine {self.engine.name!r} has no scheduler; rollouts submit all waiting requests in one batch")
            truth, actual = policy.sample(requests, sampling), dict[int, Completion]()
            with closing(policy.open_scheduler(sampling)) as left:
                left.submit(requests[0])
            with closing(policy.open_scheduler(sampling)) as scheduler:
                assert scheduler.wait() == []
                request_ids = [scheduler.submit(request) for request in requests[:3]]
                actual.update(scheduler.wait())
                request_ids += [scheduler.submit(request) for request in requests[3:]]
                while finished := scheduler.wait():
                    assert not actual.keys() & dict(finished).keys(), "no completion is returned twice"
                    actual.update(finished)
        assert len(set(request_ids)) == len(requests) and actual.keys() == set(request_ids)
        for request_id, expected in zip(request_ids, truth, strict=True):
            assert actual[request_id].tokens.tolist() == expected.tokens.tolist()

    def test_samples_use_and_report_the_newest_weights(self, checkpoint, batch, rows) -> None:
        self.need(SAMPLING, SCORING, LEARNING)
        with self.policy(checkpoint) as policy:
            before = policy.sample([Request(p, seed=i) for i, p in enumerate(rows[0])], Sampling(max_tokens=6))
            for _ in range(3):
                policy.update(batch, [Weighted()], 10 * LR)
            after = policy.sample([Request(p, seed=i) for i, p in enumerate(rows[0])], Sampling(max_tokens=6))
            self.near([c.logprobs for c in after], policy.logprobs(rows[0], [c.tokens for c in after]), 10)
            moved = policy.logprobs(rows[0], [c.tokens for c in before])
        assert any(np.abs(c.logprobs - m).max(initial=0) > 1e-2 for c, m in zip(before, moved, strict=True))
        versions = [{c.version for c in done} for done in (before, after)]
        assert versions == [{0}, {0}] or max(versions[0]) < min(versions[1]), "versions must increase, or all stay 0"

    def test_samples_include_hidden_states(self, checkpoint, plain, rows) -> None:
        self.need(SAMPLING, HIDDEN_STATES)
        with self.policy(checkpoint) as policy:
            for pooling in ("last", "mean"):
                done = policy.sample([Request(p) for p in rows[0]], Sampling(max_tokens=2), HiddenState(1, pooling))
                actual = np.stack([c.hidden for c in done if c.hidden is not None])
                np.testing.assert_allclose(actual, plain.hidden_states(rows[0], 1, pooling), atol=10 * self.tolerance)

    def test_invalid_requests_are_refused(self, checkpoint) -> None:
        self.need(SAMPLING)
        with self.policy(checkpoint) as policy:
            too_long = np.full(policy.context_limit + 1, 5)
            for request, sampling in ((Request(too_long), Sampling()), (Request(np.array([5])), Sampling(temperature=-1.0))):
                with pytest.raises(TacitError):
                    policy.sample([request], sampling)

    # Learning

    def test_updates_equal_adamw(self, checkpoint, plain, batch, rows) -> None:
        self.need(LEARNING, SCORING)
        truth = plain.copy()
        adamw = truth.adamw(self.betas, self.weight_decay)
        with self.policy(checkpoint) as policy:
            for step in range(3):
                metrics = policy.update(batch, [Weighted()], LR)
                norm = truth.step(adamw, batch, LR, self.clip_norm)
                assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-3), step
            self.near(policy.logprobs(*rows), truth.logprobs(*rows), 10)
            assert policy.digest() != ""

    def test_gradient_scales_with_the_loss(self, checkpoint, batch) -> None:
        self.need(LEARNING)
        norms = []
        for scale in (1.0, 10.0):
            with self.policy(checkpoint) as policy:
                norms.append(policy.update(batch, [Weighted(scale=scale)], LR)["grad_norm"])
        assert norms[1] == pytest.approx(10 * norms[0], rel=1e-4)

    def test_gradient_is_measured_without_a_step(self, checkpoint, batch) -> None:
        self.need(LEARNING, GRADIENTS)
        with self.policy(checkpoint) as policy:
            assert isinstance(policy, GradientScorer)
            before = policy.digest()
            norm = policy.gradient_norm(batch, [Weighted()])
            assert policy.digest() == before
            assert policy.update(batch, [Weighted()], LR)["grad_norm"] == pytest.approx(norm, rel=1e-4)

    def test_gradient_is_independent_of_micro_batches(self, checkpoint, batch, rows) -> None:
        self.need(LEARNING, SCORING, ENTROPY)
        results = []
        for budget in (1, 100_000):
            with self.policy(checkpoint, token_budget=budget) as policy:
                norm = policy.update(batch, [Weighted(frozenset({ENTROPY}))], LR)["grad_norm"]
                results.append((norm, policy.logprobs(*rows)))
        (one, ours), (other, theirs) = results
        assert one == pytest.approx(other, rel=1e-4)
        self.near(ours, theirs)

    def test_value_head_learns(self, checkpoint, batch, rows) -> None:
        self.need(LEARNING, VALUES)
        with self.policy(checkpoint, value_head=True) as policy:
            before = policy.values(rows[0])
            for _ in range(20):
                policy.update(batch, [Weighted(frozenset({VALUES}))], LR)
            after = policy.values(rows[0])
        assert before.shape == (len(rows[0]),) and np.abs(after - 1).mean() < np.abs(before - 1).mean()

    def test_non_finite_loss_changes_no_weights(self, checkpoint, batch) -> None:
        self.need(LEARNING)
        with self.policy(checkpoint) as policy:
            before = policy.digest()
            with pytest.raises(NonFiniteLoss):
                policy.update(batch, [Weighted(scale=float("nan"))], LR)
            assert policy.digest() == before

    def test_loss_with_unavailable_inputs_is_refused(self, checkpoint, batch) -> None:
        self.need(LEARNING)
        with self.policy(checkpoint) as policy, pytest.raises(TacitError, match="value"):
            policy.update(batch, [Weighted(frozenset({VALUES}))], LR)

    # Reference, checkpoints and adapters

    def test_reference_is_unchanged_by_updates(self, checkpoint, batch, rows) -> None:
        self.need(LEARNING, SCORING, REFERENCE)
        with self.policy(checkpoint) as policy:
            policy.freeze_reference()
            frozen = policy.logprobs(*rows)
            policy.update(batch, [Weighted()], LR)
            self.near(policy.reference().logprobs(*rows), frozen)
            assert max(np.abs(a - b).max(initial=0) for a, b in zip(policy.logprobs(*rows), frozen, strict=True)) > 1e-4

    def test_restored_checkpoint_continues_bit_for_bit(self, checkpoint, batch, tmp_path: Path) -> None:
        self.need(LEARNING)
        with self.policy(checkpoint) as policy:
            policy.update(batch, [Weighted()], LR)
            policy.save(tmp_path / "saved")
            one = policy.digest()
            policy.update(batch, [Weighted()], LR)
            two = policy.digest()
        with self.policy(checkpoint) as again:
            assert again.digest() not in (one, two)
            again.load(tmp_path / "saved")
            assert again.digest() == one
            again.update(batch, [Weighted()], LR)
            assert again.digest() == two

    def test_adapters_share_only_the_base(self, checkpoint, batch, rows) -> None:
        self.need(LEARNING, SCORING, ADAPTERS)
        with self.policy(checkpoint, lora_rank=4) as policy:
            start, other = policy.logprobs(*rows), policy.adapter("other")
            policy.update(batch, [Weighted()], LR)
            self.near(other.logprobs(*rows), start)
            mine = policy.logprobs(*rows)
            other.update(batch, [Weighted(scale=-1.0)], LR)
            self.near(policy.logprobs(*rows), mine)
            assert other.digest() != policy.digest()

    def test_checkpoint_without_adapter_is_refused(self, checkpoint, batch, tmp_path: Path) -> None:
        """Otherwise the adapter would silently keep its current weights. A refused load changes no weight."""
        self.need(LEARNING, ADAPTERS)
        with self.policy(checkpoint, lora_rank=4) as policy:
            policy.save(tmp_path / "saved")
            policy.adapter("later")
            policy.update(batch, [Weighted()], LR)
            before = policy.digest()
            with pytest.raises(TacitError, match="'later'"):
                policy.load(tmp_path / "saved")
            assert policy.digest() == before

    def near(self, actual: Sequence[np.ndarray], truth: Sequence[np.ndarray], times: float = 1.0) -> None:
        assert len(actual) == len(truth)
        for ours, theirs in zip(actual, truth, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=times * self.tolerance)


# The reference: a checkpoint in plain transformers and float64, one row at a time.

SMALL = TinySettings(vocab=512, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64, context=256)


def small_checkpoint(place: Path) -> Path:
    """A model of a few thousand random weights, in a transformers directory."""
    texts = [f"go to drawer {i} and take plate {i + 1} from shelf {i % 7}" for i in range(60)]
    return Path(shutil.copytree(tiny_checkpoint(texts, SMALL, seed=0), place / "model"))


class PlainModel:
    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
        self.vocabulary = int(self.model.config.vocab_size)
        end = self.model.config.eos_token_id
        self.ends = frozenset(end if isinstance(end, list) else [end])

    def copy(self) -> PlainModel:
        duplicate = copy.copy(self)
        duplicate.model = copy.deepcopy(self.model)
        return duplicate

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        with torch.no_grad():
            return [self._logprobs(p, c, temperature).numpy() for p, c in zip(prompts, completions, strict=True)]

    def distributions(self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]) -> list[np.ndarray]:
        """log π over the vocabulary, [T, V] per row"""
        with torch.no_grad():
            return [self._distributions(p, c, 1.0).numpy() for p, c in zip(prompts, completions, strict=True)]

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str) -> np.ndarray:
        rows = []
        for prompt in prompts:
            with torch.no_grad():
                states = self.model(input_ids=torch.from_numpy(prompt)[None], output_hidden_states=True).hidden_states[layer][0]
            rows.append((states[-1] if pooling == "last" else states.mean(0)).numpy())
        return np.stack(rows)

    def adamw(self, betas: tuple[float, float], weight_decay: float) -> torch.optim.Optimizer:
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, betas=betas)

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch, lr: float, clip_norm: float) -> float:
        """One AdamW step on −Σ A log π / total tokens. Returns the gradient norm before clipping."""
        optimizer.zero_grad()
        for prompt, completion, weights in zip(batch.prompts, batch.completions, batch.advantages, strict=True):
            if len(completion):
                loss = -(torch.from_numpy(np.asarray(weights)) * self._logprobs(prompt, completion, 1.0)).sum()
                (loss / batch.total_tokens).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        return norm

    def _distributions(self, prompt: np.ndarray, completion: np.ndarray, temperature: float) -> torch.Tensor:
        ids = torch.from_numpy(np.concatenate([prompt, completion]).astype(np.int64))[None]
        logits = self.model(input_ids=ids).logits[0, len(prompt) - 1 : len(prompt) + len(completion) - 1]
        return torch.log_softmax(logits / temperature, -1)

    def _logprobs(self, prompt: np.ndarray, completion: np.ndarray, temperature: float) -> torch.Tensor:
        chosen = torch.from_numpy(np.asarray(completion, np.int64))
        return self._distributions(prompt, completion, temperature)[torch.arange(len(chosen)), chosen]
