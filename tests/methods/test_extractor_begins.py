"""Initial weights of the extractor: the base model, or the imitated model if imitation showed entries (--sft.entries)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.runs.directory import open_checkpoints, read_summary

TRAIN = (
    "train --world errands --model tiny --method complementary --sft.steps 3 --sft.tasks 3 --sft.batch 4 --iterations 2 "
    "--groups 1 --group-size 4 --tasks 4 --max-steps 2 --evaluation.tasks 1 --evaluation.every 0 --extractor.batch 999 "
    "--extractor.tokens 6 --checkpoint-every 1 --keep 9 --tiny.layers 1 --tiny.hidden 32 --engine.device cpu "
    "--engine.threads 1 --history 0"
)


def weights(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((place / "model").rglob("*.safetensors"))}


def trained(out: Path, *more: str) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
    """(the actor after imitation, the extractor then, the extractor after practice)"""
    assert main([*TRAIN.split(), *more, "--out", str(out)]) == 0
    kept = {checkpoint.stage: checkpoint.path for checkpoint in open_checkpoints(out).all()}
    return weights(kept["sft"] / "policy"), *(weights(kept[stage] / "policies" / "extractor") for stage in ("sft", "rl"))


@pytest.mark.slow
def test_extractor_starts_from_imitation_only_with_sft_entries(tmp_path):
    actor, before, after = trained(tmp_path / "shown", "--sft.entries", "6")
    assert actor and before != actor and after == actor
    conditions = {e["condition"]["name"] for e in read_summary(tmp_path / "shown")["further"]}
    assert conditions <= {"experience"}, "an empty bank is not measured as if it guided"
    actor, before, after = trained(tmp_path / "not")
    assert before == after != actor, "as the model is"
