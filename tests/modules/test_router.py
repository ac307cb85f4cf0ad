"""Routing: which module plays a task, on which base, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tacit.core.errors import TacitError
from tacit.core.tasks import GoalClassifier
from tacit.core.types import Task
from tacit.engines.models.bases import fingerprint
from tacit.engines.models.tiny import hash_file
from tacit.modules import Agent, Module, find_modules
from tacit.modules.agent import Router
from tacit.modules.module import UNIFIED, Base, hash_manifest
from tacit.worlds import get_environment

WORLD, ERRANDS = get_environment("alfworld"), get_environment("errands")


def scores(router: Router, skill: str) -> np.ndarray:
    policy = router.policy(router.modules[skill])
    (logprobs,) = policy.logprobs([policy.encode_prompt("put a mug in cabinet.")], [policy.encode_completion("go to bed 1")])
    return logprobs


def test_base_is_loaded_once_and_only_the_active_adapter_is_kept(modules: Path) -> None:
    router = Router(find_modules(modules), WORLD)
    assert (router.loads["models"], router.loads["adapters"]) == (0, 0)
    heat = scores(router, "heat")
    assert np.array_equal(scores(router, "heat"), heat) and (router.loads["models"], router.loads["adapters"]) == (1, 1)
    pick = scores(router, "pick")
    assert not np.allclose(pick, heat) and (router.loads["models"], router.loads["adapters"]) == (1, 2)
    assert np.array_equal(scores(router, "heat"), heat) and (router.loads["models"], router.loads["adapters"]) == (1, 3)
    engine = router.policy(router.modules["heat"]).engine
    assert list(engine.members) == ["default"], "one adapter in memory, whichever it is"


@pytest.mark.slow
def test_sampling_uses_the_adapter_after_a_switch(modules: Path) -> None:
    """The sampler keeps copies of weights, which a switch must replace."""
    heat, pick = WORLD.tasks_of("seen", 1, 1, ("heat",))[0], WORLD.tasks_of("seen", 1, 1, ("pick",))[0]

    def played(agent: Agent) -> list[list[float]]:
        return [step.completion.logprobs.tolist() for step in agent.play(WORLD.make(), heat, seed=3).steps]

    agent = Agent.load(modules)
    routed = played(agent)
    agent.play(WORLD.make(), pick)
    assert agent.router.loads["adapters"] == 2 and played(agent) == routed and agent.router.loads["adapters"] == 3
    assert played(Agent.load(modules / "heat")) == routed
    assert played(Agent.load(modules / "pick", fallback="pick")) != routed


def rewritten(module: Module, place: Path, change: Callable[[str, torch.Tensor], torch.Tensor], **config) -> Module:
    """A copy of the module with changed tensors and a changed adapter_config.json."""
    shutil.copytree(module.path, place)
    tensors = load_file(place / "adapter_model.safetensors")
    save_file({name: change(name, t).contiguous() for name, t in tensors.items()}, place / "adapter_model.safetensors")
    saved = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**saved, **config}))
    return replace(module, path=place, skill=place.name, files={name: hash_file(place / name) for name in module.files})


def test_adapter_with_another_dtype_is_loaded_on_the_same_base(modules: Path, tmp_path: Path) -> None:
    heat = find_modules(modules)["heat"]
    rounded = rewritten(heat, tmp_path / "rounded", lambda name, t: t.to(torch.bfloat16))
    router = Router({"heat": heat, "rounded": rounded}, WORLD)
    exact, coarse = scores(router, "heat"), scores(router, "rounded")
    assert not np.array_equal(exact, coarse) and np.allclose(exact, coarse, atol=0.05) and router.loads["models"] == 1


@pytest.mark.slow
def test_adapter_with_another_rank_reloads_the_base(modules: Path, tmp_path: Path) -> None:
    """The same adapter cut to half its rank."""
    heat = find_modules(modules)["heat"]
    half = rewritten(heat, tmp_path / "half", lambda name, t: t[:2] if "lora_A" in name else t[:, :2], r=2, lora_alpha=4)
    router = Router({"heat": heat, "half": half}, WORLD)
    whole = scores(router, "heat")
    assert not np.allclose(scores(router, "half"), whole) and (router.loads["models"], router.loads["adapters"]) == (2, 2)
    assert np.array_equal(scores(router, "heat"), whole) and (router.loads["models"], router.loads["adapters"]) == (3, 3)


@pytest.mark.slow
def test_other_base_is_refused_with_both_fingerprints(modules: Path, tmp_path: Path) -> None:
    module = find_modules(modules)["heat"]
    other = replace(module.base, seed=1)
    with pytest.raises(TacitError) as caught:
        Agent.load(modules, base=other.source(WORLD))
    assert module.fingerprint in str(caught.value) and other.fingerprint(WORLD) in str(caught.value)
    assert module.fingerprint != other.fingerprint(WORLD)


def test_base_is_fingerprinted_once_and_again_when_it_changes(modules: Path, tmp_path: Path, monkeypatch) -> None:
    found, read = find_modules(modules), []
    moved = Path(shutil.copytree(found["heat"].base.source(WORLD), tmp_path / "moved"))
    monkeypatch.setattr("tacit.modules.module.fingerprint", lambda place: read.append(place) or fingerprint(place))
    Router(found, WORLD, base=str(moved))
    assert read == [moved]
    tensors = load_file(moved / "model.safetensors")
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first] + 1}, moved / "model.safetensors", {"format": "pt"})
    with pytest.raises(TacitError, match="was trained on base 'tiny' with fingerprint"):
        Router(found, WORLD, base=str(moved))
    assert read == [moved, moved]


def test_base_may_be_at_another_path(modules: Path, tmp_path: Path) -> None:
    module = find_modules(modules)["heat"]
    moved = shutil.copytree(module.base.source(WORLD), tmp_path / "moved")
    missing = {"heat": replace(module, base=Base("/no/such/model"))}
    with pytest.raises(TacitError, match="/no/such/model"):
        Router(missing, WORLD)
    expected = scores(Router({"heat": module}, WORLD), "heat")
    assert np.array_equal(scores(Router(missing, WORLD, base=str(moved)), "heat"), expected)


def test_other_tracker_is_refused_with_both_versions(modules: Path) -> None:
    assert WORLD.tracker is not None
    newer = replace(WORLD, tracker=SimpleNamespace(version="alfworld-99"))  # type: ignore[arg-type]
    with pytest.raises(TacitError, match=rf"tracker '{re.escape(WORLD.tracker.version)}'.*tracker 'alfworld-99'"):
        Agent.load(modules, world=newer)
    with pytest.raises(TacitError, match="has no tracker here"):
        Agent.load(modules, world=replace(WORLD, tracker=None))


def reworded(wording):
    """The same wording with another version."""
    return type("Reworded", (type(wording),), {"version": "7"})()


def test_other_wording_is_refused_with_both_versions(modules: Path) -> None:
    changed = replace(WORLD, wordings={**WORLD.wordings, "terse": reworded(WORLD.wording("terse"))})
    with pytest.raises(TacitError, match=r"version '1' of wording 'terse'.* has version '7' here.*Train the module again"):
        Agent.load(modules, world=changed)
    other = replace(WORLD, wordings={**WORLD.wordings, "full": reworded(WORLD.wording("full"))})
    assert Agent.load(modules, world=other).router.modules, "words it does not read may change"


def test_missing_family_is_refused_without_a_fallback(modules: Path) -> None:
    router = Router(find_modules(modules), WORLD)
    with pytest.raises(
        TacitError, match=r"no module serves family 'cool'; the modules are heat \(heat\), pick \(pick, pick2\)"
    ):
        router.choose("cool")
    assert router.choose("pick2").skill == "pick"
    with_fallback = Router(find_modules(modules), WORLD, fallback="pick")
    assert with_fallback.choose("cool").skill == "pick" and with_fallback.choose("heat").skill == "heat"
    with pytest.raises(TacitError, match=r"fallback 'look' is not one of the modules heat \(heat\), pick"):
        Router(find_modules(modules), WORLD, fallback="look")


@pytest.mark.slow
def test_more_specific_module_is_chosen_and_ties_are_refused(modules: Path) -> None:
    heat, pick = find_modules(modules).values()
    every = replace(pick, skill=UNIFIED, families=WORLD.families)
    router = Router({"heat": heat, UNIFIED: every}, WORLD)
    assert router.choose("heat").skill == "heat" and router.choose("pick").skill == UNIFIED
    twin = replace(heat, skill="twin", path=heat.path.parent / "twin")
    with pytest.raises(TacitError, match="both serve family 'heat'"):
        Router({"heat": heat, "twin": twin}, WORLD).choose("heat")


@pytest.mark.slow
def test_goal_without_a_family_is_classified(modules: Path) -> None:
    agent = Agent.load(modules)
    for goal, skill in (("heat some mug and put it in cabinet.", "heat"), ("put a pencil in desk.", "pick")):
        agent.begin(goal)
        assert agent.module.skill == skill
    agent.begin("put a pencil in desk.", family="heat")
    assert agent.module.skill == "heat", "a family that is named wins"


@pytest.mark.slow
def test_unclassifiable_goal_needs_a_family(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent.load(modules)
    monkeypatch.setattr(GoalClassifier, "MIN_ACCURACY", 1.1)
    with pytest.raises(
        TacitError, match=r"the goal needs a family: the goal texts do not determine .* begin\(goal, family=…\): heat \(heat\)"
    ):
        agent.begin("put a pencil in desk.")


def in_errands(module: Path, place: Path) -> Path:
    """A copy of the module as one for the errands world, with the same adapter and base."""
    file = Path(shutil.copytree(module, place)) / "module.json"
    data = json.loads(file.read_text()) | {
        "world": "errands",
        "skill": "heat",
        "families": [ERRANDS.families[0]],
        "tracker": ERRANDS.tracker.version,
    }
    data["wording"] = ERRANDS.wordings[data["context"]["wording"]].version
    file.write_text(json.dumps({**data, "sha256": hash_manifest(data)}))
    return place


@pytest.mark.slow
def test_one_agent_serves_modules_of_several_worlds(modules: Path, tmp_path: Path) -> None:
    shutil.copytree(modules / "heat", tmp_path / "household" / "heat")
    in_errands(modules / "pick", tmp_path / "errands" / "heat")
    base = find_modules(modules)["heat"].base.source(WORLD)  # otherwise each world has its own tiny base
    agent = Agent.load(tmp_path, base=base)
    both = Agent.load([tmp_path / "household", tmp_path / "errands"], base=base)
    assert agent.router.modules.keys() == both.router.modules.keys()
    assert sorted(agent.router.modules) == ["alfworld/heat", "errands/heat"]
    household, errand = WORLD.tasks_of("seen", 1, 1, ("heat",))[0], ERRANDS.tasks("test", 1, 1)[0]
    assert agent.router.name(household) == "alfworld/heat" and agent.router.name(errand) == "errands/heat"
    assert len(agent.play(WORLD.make(), household, seed=3).steps) and len(agent.play(ERRANDS.make(), errand, seed=3).steps)
    agent.begin(household.goal)
    assert agent.module.world == "alfworld"
    agent.begin(errand.goal)
    assert agent.module.world == "errands" and agent.router.loads["models"] == 1, "one base serves both"
    with pytest.raises(TacitError, match="two modules have the same skill and world"):
        Agent.load([tmp_path / "household", tmp_path / "household" / "heat"])


def test_router_chooses_the_module_of_a_task(modules: Path) -> None:
    router = Router(find_modules(modules), WORLD)
    task = Task("alfworld", "x", "pick2", "seen", 0, "put two mug in cabinet.")
    assert router.name(task) == "pick"
    context, policy = router.agent("pick")
    assert context.style == "bare" and policy is router.policy(router.modules["pick"])
