"""All worlds of a run share one bank, one extractor and its buffer; a killed run resumes bit for bit."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, group_extractor, solve_countdown

from tacit.cli.main import main
from tacit.companions.experience.bank import BY_HAND, Origin
from tacit.companions.experience.companion import GUIDED
from tacit.companions.experience.extractor import Operation
from tacit.companions.experience.manager import merge_origins
from tacit.config.checks import prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.runs.directory import open_checkpoints, read_summary
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLDS = [get_environment("countdown"), get_environment("textcraft")]
SETTINGS = {
    "prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0),
    "extractor_style": "terse",
    "extractor_tokens": 64,
    "extractor_batch": 5,
    "merge_every": 3,
    "search_scope": "bank",
    "merge_scope": "bank",
    "schedule": Schedule(groups=4, group_size=4, lr=1e-3),
}


def noting(prompt: str, seed: int) -> str:
    lines = prompt.splitlines()
    if lines[-1] == "merged:":
        return "\n".join(sorted({line for line in lines if line.startswith("entry:")})[:4])
    return f"add: when {lines[0][:40]} try {lines[1].partition(' > ')[0]}"


def playing(prompt: str, seed: int) -> str:
    return solve_countdown(prompt) if "[" not in prompt and " > " in prompt.splitlines()[-1] and seed % 3 else "inventory"


def make_loop(place: Path):
    """(loop over both worlds, their one companion, the extractor)"""
    extractor = ScriptedPolicy(noting)
    kit = Kit(extractor, place)
    methods = [replace(get_method("complementary")(), **group_extractor(SETTINGS)).build(world, kit) for world in WORLDS]
    grounds = [
        Collector(method, world.tasks("train", 6, 0), InProcessPool(world.make), 12, 3, world.name, 0.5)
        for world, method in zip(WORLDS, methods, strict=True)
    ]
    (first,), (second,) = (method.companions for method in methods)
    assert first is second
    return Loop(grounds, ScriptedPolicy(playing), iterations=6), first, extractor


def contents(bank) -> list:
    return [(e.id, e.text, e.origin, vars(bank.usage[e.id])) for e in bank.entries.values()]


def test_all_worlds_share_one_bank(tmp_path):
    loop, experience, extractor = make_loop(tmp_path)
    done = loop.iterate(1)
    bank = experience.manager.bank
    assert {entry.origin.world for entry in bank.entries.values()} == {"countdown", "textcraft"}
    assert len(bank) == 16 == done.metrics["experience/added"], "every episode of both is distilled, once"
    assert {name.partition("/")[0] for name in done.metrics if "success_free" in name} == {"countdown", "textcraft"}
    for number in (2, 3, 4):
        done = loop.iterate(number)
    assert done.metrics["experience/merges"] == 1, "one merge for both"
    assert extractor.updates and all(len(batch) == 5 for batch, _, _ in extractor.updates)
    assert not [name for name in done.metrics if name.endswith("experience/entries") and name != "experience/entries"]


def test_entry_used_in_two_worlds_is_one_training_sample(tmp_path):
    """Its reward is the mean over all episodes it guided. Before, each world had its own sample."""
    loop, experience, _ = make_loop(tmp_path)
    loop.iterate(1)
    manager = experience.manager
    keep = next(iter(manager.bank.entries))
    manager.bank.replace([number for number in manager.bank.entries if number != keep], (), BY_HAND)
    done = loop.iterate(2)
    guided = [t for g in done.groups for t in g.trajectories if t.condition.name == GUIDED]
    assert {t.task.world for t in guided} == {"countdown", "textcraft"} and {t.condition.entry for t in guided} == {str(keep)}
    (sample,) = manager.extractor.buffer
    assert sample.entry == keep and sample.reward == pytest.approx(np.mean([1.0 if t.success else -1.0 for t in guided]))


def test_resumed_shared_bank_run_matches_uninterrupted_run(tmp_path):
    def run(cut: bool):
        loop, experience, extractor = make_loop(tmp_path / str(cut))
        loop.iterate(1), loop.iterate(2)
        if cut:
            (tmp_path / "kept").mkdir()
            experience.save(tmp_path / "kept")
            drawn = dict(loop.drawn)
            loop.iterate(3)  # lost in a power failure
            experience.close()
            vocabulary = extractor._words, extractor._ids
            loop, experience, extractor = make_loop(tmp_path / str(cut))
            extractor._words, extractor._ids = vocabulary  # the tokenizer does not change when a run is killed
            experience.load(tmp_path / "kept")
            loop.drawn = drawn
        updates = len(extractor.updates)
        metrics = [loop.iterate(number).metrics for number in (3, 4, 5)]
        rows = [{k: v for k, v in m.items() if "seconds" not in k and "_ms" not in k and "loss" not in k} for m in metrics]
        batches = [[c.tolist() for c in batch.completions] for batch, _, _ in extractor.updates[updates:]]
        return contents(experience.manager.bank), rows, batches

    assert run(cut=False) == run(cut=True)


def test_entry_merged_from_several_worlds_has_no_world():
    here, there = Origin("a", "x", "a/1", 3, True, 1), Origin("b", "y", "b/1", 4, True, 1)
    assert merge_origins([here, there], 5, [7, 8]) == Origin(step=5, operation="merge", made_from=(7, 8))
    assert merge_origins([here, replace(here, family="z")], 5, [7]) == Origin("a", "", "a/1", 3, True, 5, "merge", (7,))


def test_per_world_bank_settings_are_refused(tmp_path):
    document = {
        "world": "countdown,textcraft", "method": "complementary", "model": "tiny-base", "out": str(tmp_path / "run"),
        "worlds": {"countdown": {"method": {"capacity": 7}}},
    }  # fmt: skip
    with pytest.raises(TacitError, match="share its experience"):
        prepare(Recipe.from_json(document))


TRAIN = (
    "train --world guessing:SAME,guessing:NEXT --model tiny --method complementary --sft.steps 40 --sft.lr 1e-2 --iterations 3 "
    "--groups 4 --group-size 8 --tasks 8 --evaluation.tasks 2 --no-evaluation.untrained --extractor.tokens 6 "
    "--extractor.batch 5 --diversity 3 --extractor.lr 1e-2 --merge-every 2 "
    "--extractor.cooldown 1 --checkpoint-every 1 --keep 9 --lr 1e-2 "
    "--tiny.layers 1 --tiny.hidden 32 --engine.device cpu --engine.threads 1"
)


def on_disk(run: Path) -> list:
    base = sqlite3.connect(run / "experience" / "bank.sqlite")
    found = [base.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in ("entries", "events", "calls")]
    base.close()
    return found


def extractor_weights(checkpoint: Path) -> dict[str, bytes]:
    files = sorted((checkpoint / "policies" / "extractor").rglob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def taken_as_it_is():
    """Accept every answer as an entry: those of an untrained extractor would be refused."""
    with pytest.MonkeyPatch.context() as patch:
        reading = "tacit.companions.experience.extractor.parse_operations"
        patch.setattr(reading, lambda answer, style, guided: (Operation("add", answer.strip() or "nothing"),))
        patch.setattr("tacit.companions.experience.extractor.find_cut", lambda completion, prompt_end: "")
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, taken_as_it_is) -> Path:
    path = tmp_path_factory.mktemp("shared-bank") / "run"
    assert main([*TRAIN.split(), "--out", str(path)]) == 0
    first, *_, last = open_checkpoints(path).all()
    assert [p.name for p in (last.path / "companions").iterdir()] == ["experience"]
    assert all(on_disk(path)) and extractor_weights(first.path) != extractor_weights(last.path), "there is something to lose"
    rows = [row for row in map(json.loads, (path / "metrics.jsonl").read_text().splitlines()) if row["stage"] == "rl"]
    learned = {name: [row.get(name, 0.0) for row in rows] for name in ("grad_norm", "experience/extractor_grad_norm")}
    assert all(min(norms[1:]) > 0 for norms in learned.values()), f"both learn, before a kill and after it: {learned}"
    assert rows[1]["experience/buffer"] > 0, "and something waits in the buffer while it is killed"
    return path


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("left", [2, 1, 0])
def test_killed_run_resumes_bit_for_bit(left, tmp_path, whole):
    """State after a kill: checkpoints up to iteration `left`, and a bank that already has entries of later iterations."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for checkpoint in open_checkpoints(run).all():
        if checkpoint.step > left:
            shutil.rmtree(checkpoint.path)
    (run / "summary.json").unlink()
    assert main(["train", "--resume", str(run), "--trust-code"]) == 0
    assert read_summary(run)["digest"] == read_summary(whole)["digest"]
    ours, theirs = (open_checkpoints(place).newest().path for place in (run, whole))
    assert extractor_weights(ours) == extractor_weights(theirs)
    assert on_disk(run) == on_disk(whole)
