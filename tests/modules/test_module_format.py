"""The module directory: its contents, detection of damage, and loading with peft."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.modules import find_modules, read_module
from tacit.modules.agent import Router
from tacit.modules.export import portable_scores
from tacit.modules.module import describe_context, has_modules, hash_manifest, make_context
from tacit.prompts.history import History
from tacit.runs.directory import read_summary
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")


def test_manifest_describes_the_module(modules: Path) -> None:
    module = read_module(modules / "pick")
    run = modules / "runs" / "pick"
    summary = read_summary(run)
    assert (module.world, module.skill, module.families) == ("alfworld", "pick", ("pick", "pick2"))
    assert WORLD.tracker is not None and module.tracker == WORLD.tracker.version
    assert module.adapter and module.base.model == "tiny" and len(module.fingerprint) == 64
    assert module.digest == summary["digest"] and module.run["checkpoint"] == "rl-000002"
    assert module.run["settings"] == json.loads((run / "settings.json").read_text())
    assert module.scores["rl"] == summary["evaluations"][-1] and set(module.scores) == {"sft", "rl"}
    assert module.scores["sft"]["panel"] == "alfworld/seen/4[pick,pick2]" and len(module.scores["sft"]["interval"]) == 2
    assert module.context["kind"] == "state_block" and module.context["wording"] == "terse" and module.wording == "1"
    assert module.sampling.temperature == 0.4 and module.max_steps == 4 and module.code["tacit"]
    assert set(module.files) == {"adapter_model.safetensors", "adapter_config.json"}
    assert module.to_json() == json.loads((modules / "pick" / "module.json").read_text())
    config = json.loads((modules / "pick" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny", "its name, not where it lay on the machine it was trained on"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["list", "verify"])
def test_list_and_verify_do_not_import_torch(modules: Path, command: str) -> None:
    assert main(["modules", "verify", str(modules)]) == 0  # building the base needs torch, so do it before
    words = f"import sys; from tacit.cli.main import main; code = main(['modules', {command!r}, {str(modules)!r}])"
    ran = subprocess.run(
        [sys.executable, "-c", f"{words}; print(code, 'torch' in sys.modules)"], capture_output=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "0 False", ran.stderr


def test_modules_share_a_base_and_have_different_adapters(modules: Path) -> None:
    heat, pick = find_modules(modules).values()
    assert heat.fingerprint == pick.fingerprint and heat.digest != pick.digest


def test_modules_are_found_alone_or_in_a_directory(modules: Path, tmp_path: Path) -> None:
    assert list(find_modules(modules)) == ["heat", "pick"] and list(find_modules(modules / "heat")) == ["heat"]
    assert has_modules(modules) and has_modules(modules / "heat") and not has_modules(tmp_path)
    with pytest.raises(TacitError, match="contains no module"):
        find_modules(tmp_path)
    with pytest.raises(TacitError, match="does not exist"):
        find_modules(tmp_path / "nowhere")
    shutil.copytree(modules / "heat", tmp_path / ".heat.1.tmp")
    shutil.copytree(modules / "heat", tmp_path / "heat")
    assert list(find_modules(tmp_path)) == ["heat"]
    shutil.copytree(modules / "heat", tmp_path / "again")
    with pytest.raises(TacitError, match="are both modules of skill 'heat'"):
        find_modules(tmp_path)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_flipped_byte_is_detected_and_the_file_named(modules: Path, tmp_path: Path, name: str) -> None:
    place = Path(shutil.copytree(modules / "heat", tmp_path / "heat"))
    file = place / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    module = read_module(place)
    (problem,) = module.find_damage()
    assert problem.startswith(f"{file} is damaged") and module.files[name] in problem
    router = Router({"heat": module}, WORLD)
    with pytest.raises(TacitError, match=f"{name} is damaged"):
        router.policy(module)
    assert router.loads["models"] == 0
    file.unlink()
    with pytest.raises(TacitError, match=f"{name} is missing"):
        module.check_files()


def test_unreadable_manifest_is_named(modules: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(modules / "heat", tmp_path / "heat"))
    file = place / "module.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "format": 2}))
    with pytest.raises(TacitError, match=r"module.json has format 2; this version of tacit reads format 1"):
        read_module(place)
    del whole["families"]
    file.write_text(json.dumps(whole))
    with pytest.raises(TacitError, match=r"cannot read the module .*module.json: KeyError: 'families'"):
        read_module(place)
    file.write_text("{")
    with pytest.raises(TacitError, match=r"cannot read the module .*module.json"):
        read_module(place)


def test_other_wording_version_is_a_mismatch(modules: Path) -> None:
    module = read_module(modules / "heat")
    assert module.find_mismatches(WORLD) == []
    (mismatch,) = replace(module, context={**module.context, "wording": "full"}).find_mismatches(WORLD)
    assert "version '1' of wording 'full', but world 'alfworld' has version '2'" in mismatch


def test_adapter_loads_in_peft_with_the_same_logprobs(modules: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    module = read_module(modules / "heat")
    policy = Router({"heat": module}, WORLD).policy(module)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(module.base.source(WORLD)), modules / "heat")
    prompt, completion = policy.encode_prompt("put a hot mug in cabinet."), policy.encode_completion("go to microwave 1")
    (ours,) = policy.logprobs([prompt], [completion])
    tokens = np.concatenate([prompt, completion])
    with torch.no_grad():
        logits = theirs(torch.from_numpy(tokens)[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        bare = theirs.get_base_model()
        theirs.base_model.disable_adapter_layers()
        without = bare(torch.from_numpy(tokens)[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    picked = torch.from_numpy(completion)[:, None]
    assert np.allclose(ours, logits.gather(1, picked)[:, 0].numpy(), atol=1e-4)
    assert not np.allclose(ours, without.gather(1, picked)[:, 0].numpy(), atol=1e-3), "the adapter changes nothing"


def test_export_keeps_only_scores_of_its_weights_and_finished_stages() -> None:
    measured = [{"stage": "sft", "step": 60}, {"stage": "rl", "step": 2}, {"stage": "rl", "step": 4}]

    def stages_of(stage: str, step: int) -> dict[str, int]:
        checkpoint = SimpleNamespace(stage=stage, step=step, state=lambda: {"evaluations": measured})
        return {name: score["step"] for name, score in portable_scores(checkpoint, "alfworld").items()}  # type: ignore[arg-type]

    assert stages_of("rl", 4) == {"sft": 60, "rl": 4}
    assert stages_of("rl", 5) == {"sft": 60}, "nobody has measured the fifth"


def test_context_round_trips_through_json() -> None:
    history = History(WORLD.wordings["full"], None, True, "tags")
    kept = describe_context(history, WORLD)
    own = {"turns": None, "admissible": True, "style": "tags", "chat": False, "thinking": False}
    assert kept == {"kind": "history", "wording": "full", **own}
    assert make_context(json.loads(json.dumps(kept)), WORLD) == history
    block = make_context({"kind": "state_block", "wording": "terse", "block": True}, WORLD)
    assert make_context(describe_context(block, WORLD), WORLD) == block
    paper = replace(block, tracker=WORLD.tracker_of("paper"))
    assert make_context(describe_context(paper, WORLD), WORLD) == paper
    assert make_context({"kind": "state_block", "wording": "terse"}, WORLD).tracker is WORLD.tracker, "from before forms"
    with pytest.raises(TacitError, match="unknown form 'other' of the state block"):
        make_context({**describe_context(paper, WORLD), "form": "other"}, WORLD)
    with pytest.raises(TacitError, match=r"unknown setting 'turn' of the context 'history'. Did you mean 'turns'"):
        make_context({"kind": "history", "wording": "full", "turn": 1}, WORLD)
    with pytest.raises(TacitError, match="has no tracker here"):
        make_context({"kind": "state_block", "wording": "terse"}, replace(WORLD, tracker=None))
    with pytest.raises(TacitError, match="uses object"):
        describe_context(object(), WORLD)  # type: ignore[arg-type]


def test_other_form_of_the_state_block_is_a_mismatch(modules: Path) -> None:
    module = read_module(modules / "pick")
    assert module.find_mismatches(WORLD) == []
    other = replace(module, context={**module.context, "form": "paper"})
    (mismatch,) = other.find_mismatches(WORLD)
    assert "trained with tracker 'alfworld-1'" in mismatch and "tracker 'alfworld-paper-1' here" in mismatch


def test_manifest_changes_are_detected_by_its_hash(modules: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(modules / "heat", tmp_path / "heat"))
    file, module = copy / "module.json", read_module(copy)
    data = json.loads(file.read_text())
    assert data["sha256"] == hash_manifest(data) and not module.find_damage()
    file.write_text(json.dumps(data, indent=7))
    assert not read_module(copy).find_damage(), "spacing and order do not matter"
    stage = next(iter(data["scores"]))
    file.write_text(json.dumps({**data, "scores": {stage: {**data["scores"][stage], "successes": 4}}}))
    (damage,) = read_module(copy).find_damage()
    assert "module.json was changed after it was written (sha256" in damage
    with pytest.raises(TacitError, match=r"module\.json was changed after it was written"):
        read_module(copy).check_files()
