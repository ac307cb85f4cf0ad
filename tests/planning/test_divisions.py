"""Plans: which divisions fit, which is fastest, and remedies; limit cases and numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tacit.core.errors import TacitError
from tacit.planning.plans import (
    Cluster,
    Network,
    Training,
    Workload,
    best_division,
    check_memory_fits,
    find_faster,
    find_remedies,
    iteration_s,
    make_plan,
    push_s,
    uniform,
)
from tacit.planning.shapes import DEVICES, SAMPLERS, SIZES

WORK = uniform(128, 20, 500, 30)
EIGHT_B = Cluster(SIZES["8B"], DEVICES["h100"], SAMPLERS["vllm"])
LLAMA_8B = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_hidden_layers": 32,
            "intermediate_size": 14_336, "vocab_size": 128_256}  # fmt: skip


def test_rank_memory_by_hand():
    """8.03B weights on 4 ranks: 16 bytes per weight, a quarter on each rank."""
    parts = EIGHT_B.rank_state(4)
    size = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
    assert size == pytest.approx(16 * SIZES["8B"].weights / 4)


def test_server_rows_by_hand():
    """92% of 80 GB minus 16.06 GB of weights and 2 GB of runtime, for rows of 1,000 tokens of 131,072 bytes."""
    assert EIGHT_B.rows_that_fit(1000) == int((73.6e9 - 2e9 - 2 * SIZES["8B"].weights) / 131_072_000)


def test_best_division_is_the_fastest():
    best = best_division(EIGHT_B, WORK, 16)
    assert best.devices <= 16 and not best.trouble
    others = [make_plan(EIGHT_B, WORK, 16 - servers, servers) for servers in range(16)]
    assert best.iteration <= min(plan.iteration for plan in others if not plan.trouble)


def test_more_devices_are_never_slower():
    seconds = [best_division(EIGHT_B, WORK, count).iteration for count in (8, 16, 32, 64)]
    assert seconds == sorted(seconds, reverse=True)


def test_overlap_hides_the_shorter_part():
    assert iteration_s(5.0, 3.0, 0.5, 0) == 8.5 and iteration_s(5.0, 3.0, 0.5, 1) == 5.5 == iteration_s(3.0, 5.0, 0.5, 2)
    alone = make_plan(replace(EIGHT_B, overlap=1), WORK, 4, 0)  # one rank cannot sample and train at the same time
    assert alone.iteration == pytest.approx(alone.rollout + alone.update_total)


def test_file_push_time_grows_with_servers():
    by_file = replace(EIGHT_B, network=Network(storage=1e9))
    assert push_s(by_file, 9) == pytest.approx(10 * 2 * SIZES["8B"].weights / 1e9)
    assert push_s(by_file, 0) == 0


def test_bottleneck_is_identified():
    assert best_division(EIGHT_B, uniform(128, 20, 10, 900), 8).bottleneck == "rollout"
    assert make_plan(EIGHT_B, uniform(128, 2, 3000, 1), 4, 12).bottleneck == "push", "twelve servers read the same files"
    fast = replace(EIGHT_B, network=Network(storage=100e9))
    assert make_plan(fast, uniform(128, 2, 3000, 1), 4, 12).bottleneck == "update"
    slow = replace(EIGHT_B, network=Network(bandwidth=1e9))
    assert make_plan(slow, WORK, 12, 4).bottleneck == "network between ranks"
    assert make_plan(slow, uniform(8, 1, 10, 1), 8, 4).bottleneck == "push"


def test_suggested_remedies_make_the_plan_fit():
    plan = best_division(EIGHT_B, WORK, 2)
    assert "needs" in plan.trouble and plan.bottleneck == "memory"
    found = " | ".join(find_remedies(EIGHT_B, plan.ranks, WORK.longest_row, samples=not plan.servers))
    assert "lora-rank 16" in found and "--engine.ranks 4" in found and "h200" in found
    adapters = replace(EIGHT_B, training=Training(lora_rank=16))
    assert not best_division(adapters, WORK, 2).trouble
    assert not make_plan(EIGHT_B, WORK, 4, 1).trouble and make_plan(EIGHT_B, WORK, 2, 0).trouble


def test_suggested_speedup_is_faster():
    plan = best_division(EIGHT_B, WORK, 16)
    words = find_faster(EIGHT_B, WORK, plan, 16)
    assert any(word.startswith("--overlap 1") for word in words)
    assert best_division(replace(EIGHT_B, overlap=1), WORK, 16).iteration < 0.9 * plan.iteration


def test_memory_check_error_lists_what_would_fit():
    with pytest.raises(
        TacitError, match=r"does not fit: each of 2 ranks needs .* What would fit: .*lora-rank 16.*--engine.ranks"
    ):
        check_memory_fits(LLAMA_8B, "llama", 2, 80e9, Training(), 4096, samples=True)
    check_memory_fits(LLAMA_8B, "llama", 8, 80e9, Training(), 4096)


def test_workload_scales_to_other_means():
    work = uniform(4, 10, 100, 10).scale(turns=20, completion=30)
    assert (work.turns, work.prompt, work.completion, work.longest_row, work.longest_episode) == (20, 100, 30, 130, 20)
    assert WORK.scale() == WORK
    uneven = Workload.measured(4, [np.tile([100, 10], (n, 1)) for n in (2, 4, 40)])
    assert uneven.turns == pytest.approx(46 / 3) and uneven.longest_episode == 40 == uneven.longest_of_all
    assert uneven.scale(turns=30, most_turns=50).longest_episode == 50
    with pytest.raises(TacitError, match="this world ends episodes after 50"):
        uneven.scale(turns=51, most_turns=50)
    with pytest.raises(TacitError, match="nothing to plan"):
        Workload.measured(0, [np.ones((1, 2))])


def test_server_device_count_is_respected():
    assert best_division(EIGHT_B, WORK, 16, server_devices=2).server_devices == 2
    large = replace(EIGHT_B, shape=SIZES["70B"], training=Training(lora_rank=8, recompute=True))
    assert "no room" in best_division(large, WORK, 64, server_devices=1).trouble
    assert best_division(large, WORK, 64).server_devices > 1


def test_too_many_ranks_are_rejected():
    with pytest.raises(TacitError, match="9 ranks and some servers do not fit on 8 devices"):
        best_division(EIGHT_B, WORK, 8, ranks=9)
