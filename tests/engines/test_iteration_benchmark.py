"""The benchmark of a whole iteration reports the time of each phase and the results of other libraries."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from forked import Forked, run_script

from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TINY_SIZES, tiny_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> Forked:
    return run_script(ROOT / "benchmarks" / "iteration.py", *arguments)


@pytest.mark.slow
def test_benchmark_reports_phases_and_peers_as_json():
    few = ("--episodes", "8", "--prompt-tokens", "40", "--new-tokens", "4", "--turns", "2", "--repeats", "1")
    done = run("--device", "cpu", *few, "--grow", "turns=1,2", "--json")
    assert done.code == 0, done.err
    one, two = json.loads(done.out.splitlines()[-1])["measured"]
    assert one["turns"] == 1 and one["rows"] == 8 and two["rows"] > 8
    seconds = two["seconds"]
    assert seconds["iteration"] == pytest.approx(seconds["rollout"] + seconds["credit"] + seconds["update"])
    assert 25 < two["tokens_a_row"] < 65
    assert two["peers"]["transformers update"]["seconds"] > 0
    assert "GPU" in two["peers"]["vllm rollout"]["failed"]
    assert two["behaviour_gap"] < 1e-4


@pytest.mark.slow
def test_even_episodes_have_equally_many_turns():
    few = ("--episodes", "8", "--prompt-tokens", "20", "--new-tokens", "2", "--turns", "3", "--repeats", "1", "--alone")
    found = [json.loads(run("--device", "cpu", *few, *more, "--json").out.splitlines()[-1]) for more in ((), ("--even",))]
    uneven, even = (one["measured"][0] for one in found)
    assert even["rows"] == 24 and even["even"] and uneven["rows"] != 24


@pytest.mark.slow
def test_completion_lengths_match_the_setting_and_episodes_do_not_end_early(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import iteration

    path = str(tiny_checkpoint(iteration.world_texts(), TINY_SIZES["tiny"], 0))
    policy = load_policy(path, EngineSettings(device="cpu", threads=1))
    _, groups, _, _ = iteration.iterate(policy, iteration.Shape(8, 4, 20, 60, even=True), 0)
    lengths = [len(step.completion.tokens) for group in groups for t in group.trajectories for step in t.steps]
    assert len(lengths) == 32 and min(lengths) >= 30 and max(lengths) <= 90


def test_unknown_setting_for_grow_is_an_error():
    done = run("--grow", "rows=3")
    assert done.code == 2 and "rows=3: unknown option; choose from episodes, turns, prompt_tokens, new_tokens" in done.err


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="it would start")
def test_missing_or_failing_vllm_is_reported(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from vllm_peer import beside_vllm

    def why(directory: Path | None) -> str:
        return beside_vllm("model", {"work": [[([1, 2, 3], 2)]]}, str(directory) if directory else None, 1)["work"]["failed"]

    assert why(tmp_path / "nowhere").startswith("there is no directory")
    assert "No module named 'vllm'" in why(None)
    (tmp_path / "vllm.py").write_text("raise RuntimeError('CUDA out of memory')")
    assert "CUDA out of memory" in why(tmp_path)


def test_vllm_gets_each_turn_as_soon_as_the_previous_one_finishes(monkeypatch, tmp_path):
    """One engine serves all workloads. A turn is requested when the previous one is written, without waiting for others."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from vllm_peer import beside_vllm

    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "sampling_params.py").write_text("class RequestOutputKind: FINAL_ONLY = 2")
    (tmp_path / "vllm" / "__init__.py").write_text(WRITES_A_TOKEN_A_STEP.format(log=str(tmp_path / "log")))
    works = {"one turn": [[([1], 2)], [([2], 3)]], "episodes": [[([3], 1), ([4], 1), ([5], 1)], [([6], 4)]]}
    found = beside_vllm("model", works, str(tmp_path), repeats=2)
    assert [len(found[name]["seconds"]) for name in works] == [2, 2]
    assert [found[name]["tokens"] for name in works] == [5, 7]
    log = (tmp_path / "log").read_text().split()
    assert log[0] == "made:13:2"  # context for the longest prompt with its completion, and slots for all episodes
    assert log[1:] == 3 * ["1@0", "2@0"] + 3 * ["3@0", "6@0", "4@1", "5@2"]  # prompt@step


WRITES_A_TOKEN_A_STEP = """
from types import SimpleNamespace as New
__version__ = "0"
log = open({log!r}, "a")
SamplingParams = lambda **settings: New(**settings)
class LLM:
    def __init__(self, **settings):
        print("made", settings["max_model_len"], settings["max_num_seqs"], sep=":", file=log)
        self.llm_engine, self.working, self.steps = self, [], 0
    def reset_prefix_cache(self):
        self.steps = 0
    def add_request(self, request_id, prompt, params):
        print(*prompt["prompt_token_ids"], self.steps, sep="@", file=log, flush=True)
        self.working.append(New(request_id=request_id, params=params, outputs=[New(token_ids=[])], finished=False))
    def has_unfinished_requests(self):
        return bool(self.working)
    def step(self):
        self.steps += 1
        for one in self.working:
            one.outputs[0].token_ids.append(7)
            one.finished = len(one.outputs[0].token_ids) == one.params.max_tokens
        over = [one for one in self.working if one.finished]
        self.working = [one for one in self.working if not one.finished]
        return over
"""
