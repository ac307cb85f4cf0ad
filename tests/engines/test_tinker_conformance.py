"""The Tinker engine passes the engine conformance tests against an in-process service with a real model. Where the API lacks a
feature, the test checks that it is refused with a message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the client of the Tinker API is not installed: pip install 'tacit-agents[tinker]'")

from tinker_service import Loopback

from tacit.core.errors import TacitError
from tacit.core.protocols import ModelSource, Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines import TINKER as ENGINE
from tacit.engines.tinker.policy import load_policy
from tacit.engines.tinker.service import TinkerSettings
from tacit.testing.engines import LR, EngineConformance, Weighted


@pytest.mark.slow
class TestTinker(EngineConformance):
    engine = replace(ENGINE, load=lambda model, settings: load_policy(model, settings, SERVICES[-1]))

    @pytest.fixture(autouse=True)
    def service(self):
        """One service per test; its checkpoints outlive a policy."""
        SERVICES.append(Loopback())
        yield SERVICES[-1]
        SERVICES.pop()

    def settings(self, token_budget=0, value_head=False, lora_rank=8):
        assert not value_head
        return TinkerSettings(lora_rank=lora_rank, timeout_s=30.0, probe=False)

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_log_probabilities_equal_transformers(self, checkpoint, plain, rows, temperature):
        if temperature == 1.0:
            super().test_log_probabilities_equal_transformers(checkpoint, plain, rows, temperature)
            return
        with (
            self.policy(checkpoint) as policy,
            pytest.raises(TacitError, match=r"scoring at temperature 0\.5.*--temperature 1"),
        ):
            policy.logprobs(*rows, temperature)

    def test_updates_equal_adamw(self, checkpoint, plain, batch, rows):
        """The conformance test trains all weights, the API only adapters. So this compares with the same losses in peft."""
        import torch
        from peft import LoraConfig, get_peft_model
        from tinker_service import PROJECTIONS
        from transformers import AutoModelForCausalLM

        with self.policy(checkpoint) as policy:
            model = policy.member.client.model
            truth = get_peft_model(
                AutoModelForCausalLM.from_pretrained(checkpoint), LoraConfig(r=8, lora_alpha=32, target_modules=PROJECTIONS)
            ).eval()
            truth.load_state_dict(model.state_dict())
            trained = [p for p in truth.parameters() if p.requires_grad]
            adamw = torch.optim.AdamW(trained, lr=LR, betas=self.betas, weight_decay=self.weight_decay)
            for _ in range(3):
                norm = policy.update(batch, [Weighted()], LR)["grad_norm"]
                for prompt, completion, weights in zip(*rows, batch.advantages, strict=True):
                    if len(completion):
                        ids = torch.from_numpy(np.concatenate([prompt, completion]))
                        logprobs = torch.log_softmax(truth(input_ids=ids[None]).logits[0], -1)[len(prompt) - 1 : -1]
                        chosen = logprobs[torch.arange(len(completion)), torch.from_numpy(completion)]
                        (-(torch.from_numpy(weights) * chosen).sum() / batch.total_tokens).backward()
                assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)), rel=1e-3)
                adamw.step()
                adamw.zero_grad()
            for ours, theirs in zip(model.parameters(), truth.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)

    def test_restored_checkpoint_continues_bit_for_bit(self, checkpoint, batch, tmp_path, rows):
        super().test_restored_checkpoint_continues_bit_for_bit(checkpoint, batch, tmp_path)
        scores = []
        for again in (False, True):  # this engine's digest covers the operations, so compare scores too
            with self.policy(checkpoint) as policy:
                if again:
                    policy.load(tmp_path / "saved")
                else:
                    policy.update(batch, [Weighted()], LR)
                policy.update(batch, [Weighted()], LR)
                scores.append(policy.logprobs(*rows))
        self.near(scores[0], scores[1], 1e-2)

    # Only this engine

    def test_gradient_scale_is_probed_at_connection(self, checkpoint, service):
        load_policy(ModelSource(str(checkpoint)), TinkerSettings(lora_rank=4), service)
        with pytest.raises(TacitError, match="ten times the loss gave 1 times the gradient"):
            load_policy(ModelSource(str(checkpoint)), TinkerSettings(lora_rank=4), Loopback(rescales=True))
        with pytest.raises(TacitError, match=r"does not report gradient norms, .* --no-engine\.probe"):
            load_policy(ModelSource(str(checkpoint)), TinkerSettings(lora_rank=4), Loopback(silent=True))

    def test_requests_time_out(self, checkpoint):
        policy = load_policy(ModelSource(str(checkpoint)), TinkerSettings(timeout_s=0.2, probe=False), Loopback(stuck=True))
        with pytest.raises(TacitError, match=r"did not answer within 0\.2 s: scoring"):
            policy.logprobs([np.array([5, 6])], [np.array([7])])

    def test_unsupported_features_are_refused_with_a_message(self, checkpoint, batch, rows):
        with self.policy(checkpoint) as policy:
            with pytest.raises(TacitError, match="value head"):
                policy.values(rows[0])
            with pytest.raises(TacitError, match="hidden states"):
                policy.sample([Request(rows[0][0])], Sampling(), hidden=HiddenState(1))
            with pytest.raises(TacitError, match="full distributions"):
                policy.distributions(*rows)
            with pytest.raises(TacitError, match="entropy of the distribution"):
                policy.update(batch, [Weighted(frozenset({"entropy"}))], LR)
            with pytest.raises(TacitError, match=r"an update at temperature 0\.7"):
                policy.update(replace(batch, temperature=0.7), [Weighted()], LR)
        with pytest.raises(TacitError, match="adapters only"):
            TinkerSettings(lora_rank=0)

    def test_new_stage_keeps_the_weights_and_resets_the_moments(self, checkpoint, batch, rows):
        with self.policy(checkpoint) as policy:
            policy.update(batch, [Weighted()], LR)
            before = policy.logprobs(*rows)
            policy.begin_stage()
            self.near(policy.logprobs(*rows), before)
            assert not policy.member.client.optimizer.state

    def test_loading_restores_the_reference_of_the_checkpoint(self, checkpoint, batch, rows, tmp_path):
        with self.policy(checkpoint) as policy:
            policy.save(tmp_path / "saved")
            base = policy.reference().logprobs(*rows)
            policy.update(batch, [Weighted(scale=50.0)], 0.05)
            policy.freeze_reference()
            policy.load(tmp_path / "saved")
            self.near(policy.reference().logprobs(*rows), base)

    def test_samples_carry_their_weight_version(self, checkpoint, batch, rows):
        with self.policy(checkpoint) as policy:
            ask = [Request(rows[0][1], seed=1)]
            first = policy.sample(ask, Sampling(max_tokens=3))[0]
            policy.update(batch, [Weighted(scale=50.0)], 0.05)
            second = policy.sample(ask, Sampling(max_tokens=3))[0]
            assert (first.version, second.version) == (0, 1)
            self.near([second.logprobs], policy.logprobs([rows[0][1]], [second.tokens]))

    def test_checkpoint_of_another_model_is_refused(self, checkpoint, tmp_path):
        with self.policy(checkpoint) as policy:
            policy.save(tmp_path / "saved")
        with self.policy(checkpoint, lora_rank=4) as other, pytest.raises(TacitError, match="this policy"):
            other.load(tmp_path / "saved")
        (tmp_path / "saved" / "policy.json").write_text("{")
        with self.policy(checkpoint) as policy, pytest.raises(TacitError, match="use an earlier checkpoint"):
            policy.load(tmp_path / "saved")


SERVICES: list[Loopback] = []
