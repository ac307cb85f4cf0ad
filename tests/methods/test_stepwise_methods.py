"""GiGPO, HGPO, BiGPO and BiPACE: differences from GRPO, published defaults and refused settings."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from scripted import ScriptedPolicy, solve_countdown

from tacit.core.errors import TacitError
from tacit.core.method import Method, Schedule
from tacit.credit.episode import LeaveOneOut
from tacit.credit.partitions import (
    ActorHidden,
    AdaptiveRadius,
    Clusters,
    HashNgram,
    Identity,
    SameKey,
    SentenceEncoder,
    SimilarObservation,
)
from tacit.credit.step_relative import ActionPeers, HistoryHierarchy, StepRelative
from tacit.methods import get_method
from tacit.methods.bipace import BiGPO, BiPACE
from tacit.methods.gigpo import HGPO, GiGPO
from tacit.methods.grpo import GRPO
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import iteration_records
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TASKS = WORLD.tasks("train", 12, 0)
SMALL = {
    "prompt": PromptSettings(wording="terse", style="bare", admissible=False),
    "schedule": Schedule(groups=3, group_size=4),
}


def differs(method: Method, other: Method) -> set[str]:
    return {f.name for f in fields(Method) if getattr(method, f.name) != getattr(other, f.name)} - {"name"}


def half_hearted(prompt: str, seed: int) -> str:
    return solve_countdown(prompt) if seed % 2 else "reset"


def run(method: Method, number: int = 1):
    return Loop([Collector(method, TASKS, InProcessPool(WORLD.make), 16, 4)], ScriptedPolicy(half_hearted)).iterate(number)


def advantages(method: Method) -> list[list[float]]:
    return [credit.tokens_T.tolist() for credit in run(method).credits]


def test_step_level_defaults_match_the_papers():
    grpo = GRPO().build(WORLD)
    gigpo, hgpo, bigpo, bipace = (m().build(WORLD) for m in (GiGPO, HGPO, BiGPO, BiPACE))
    assert differs(gigpo, grpo) == differs(hgpo, grpo) == {"credits"}
    assert gigpo.credits == (*grpo.credits, StepRelative(SameKey(), 1.0, 0.95, "population", 1e-6))
    assert hgpo.credits == (HistoryHierarchy(3, 1.0, False, 0.95, "population"),), "k up to history + 1, no episode term"
    assert differs(bigpo, grpo) == differs(bipace, grpo) == {"credits", "hidden_state", "schedule"}
    clusters = Clusters(ActorHidden(-8, "last"), 0.10)
    assert bigpo.credits[1] == StepRelative(clusters, 1.0, 0.95, "population")
    assert bipace.credits[1] == ActionPeers(clusters, 1.0, 0.95, None, 1e-6, "q", "tag", 8)
    assert bipace.hidden_state == (-8, "last") and bipace.schedule == replace(grpo.schedule, lr=5e-7)


def test_step_level_settings_change_the_credit():
    assert GiGPO(similarity=0.9).build(WORLD).credits[1].partition == SimilarObservation(0.9)
    assert GiGPO(step_std="none", step_weight=0.5, gamma=0.9).build(WORLD).credits[1] == StepRelative(SameKey(), 0.5, 0.9, None)
    assert HGPO(alpha=2.0, base=True).with_prompt(history=-1).build(WORLD).credits[0] == HistoryHierarchy(None, 2.0, True)
    variant = BiPACE(estimator="difference", action_key="tokens", key_tokens=4, step_std="sample").build(WORLD).credits[1]
    assert (variant.form, variant.key, variant.key_tokens, variant.std) == ("difference", "tokens", 4, "sample")
    by = {name: BiGPO(embedder=name).build(WORLD) for name in ("ngram", "identity", "sentence")}
    assert [m.credits[1].partition for m in (by["ngram"], by["identity"])] == [
        Clusters(HashNgram(), 0.25), Clusters(Identity(), 0.0)
    ]  # fmt: skip
    encoded = by["sentence"].credits[1].partition
    assert isinstance(encoded.embedder, SentenceEncoder) and encoded.radius == 0.10
    assert all(m.hidden_state is None for m in by.values()), "text needs no hidden states"
    pooled = BiPACE(pooling="mean", layer=-3).build(WORLD)
    assert pooled.hidden_state == (-3, "mean") and pooled.credits[1].partition.embedder == ActorHidden(-3, "mean")


@pytest.mark.parametrize("epsilon", [-0.01, 2.01])
def test_radius_outside_0_to_2_is_refused(epsilon):
    with pytest.raises(TacitError, match="between 0"):
        BiPACE(epsilon=epsilon).build(WORLD)


def test_bigpo_with_identity_embedder_is_gigpo_bit_for_bit():
    lr = replace(SMALL["schedule"], lr=5e-7)
    assert advantages(BiGPO(**SMALL, embedder="identity").build(WORLD)) == advantages(
        GiGPO(**{**SMALL, "schedule": lr}).build(WORLD)
    )


@pytest.mark.parametrize("settings", [GiGPO, BiGPO, BiPACE])
def test_weight_zero_is_grpo(settings):
    assert advantages(settings(**SMALL, step_weight=0.0).build(WORLD)) == advantages(GRPO(**SMALL).build(WORLD))
    assert advantages(settings(**SMALL).build(WORLD)) != advantages(GRPO(**SMALL).build(WORLD))


@pytest.mark.parametrize("settings", [GiGPO, HGPO, BiGPO, BiPACE])
def test_diagnostics_are_in_metrics_and_records(settings):
    done = run(settings(**SMALL).build(WORLD))
    expected = {"parts", "parts_singleton", "parts_singleton_steps", "parts_mean_size", "parts_pairs", "step_credit_seconds"}
    if settings is BiPACE:
        expected |= {"pace_used", "pace_leave_one_out", "pace_zero", "pace_keys_per_part", "pace_parsed"}
        assert sum(done.metrics[f"pace_{b}"] for b in ("used", "leave_one_out", "zero")) == pytest.approx(1.0)
    assert expected <= done.metrics.keys()
    turns = [turn for record in iteration_records(done)[1] for turn in record["turns"]]
    assert all(isinstance(turn["part"], int) and isinstance(turn["step_credit"], float) for turn in turns)


def test_adaptive_radius_is_searched_once_and_saved(tmp_path):
    method = BiPACE(**SMALL, adaptive=True).build(WORLD)
    (companion,) = method.companions
    assert isinstance(companion, AdaptiveRadius) and method.credits[1].partition.radius is companion
    with pytest.raises(TacitError, match="not set yet"):
        _ = companion.value
    assert companion.observe([], None) == {}, "nothing was played: look again next time"
    first = run(method)
    found = companion.value
    assert 0.02 <= found <= 0.40 and first.metrics["radius"] == found and "radius_median_size" in first.metrics
    assert run(method, 2).metrics["radius"] == found
    again = BiPACE(**SMALL, adaptive=True).build(WORLD)
    companion.save(tmp_path)
    again.companions[0].load(tmp_path)
    assert again.companions[0].value == found


def test_step_credit_combines_with_rloo_but_not_bipace():
    both = get_method("rloo+gigpo")(**SMALL).build(WORLD)
    assert [type(term) for term in both.credits] == [LeaveOneOut, StepRelative], "one episode credit, not two"
    with pytest.raises(TacitError, match="both add a step credit"):
        get_method("gigpo+bipace")(**SMALL).build(WORLD)
    assert np.isfinite(np.concatenate([c.tokens_T for c in run(both).credits])).all()
