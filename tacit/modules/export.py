"""From a checkpoint of a run to a module: its weights as they play, and what a player has to know about them.

Nothing is loaded: a checkpoint already has the adapter in peft's format and the model in transformers'. The optimiser, the
frozen reference and a value head stay behind, since no one plays with them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Sampling
from tacit.core.world import Environment
from tacit.engines.models.bases import hash_file
from tacit.evaluation.scores import in_world
from tacit.modules.carrying import Carried, carried_by, make_known
from tacit.modules.drafting.tracker import FencedDraft
from tacit.modules.module import MANIFEST, UNIFIED, Base, Module, describe_context, tracker_version, wording_version
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import versions
from tacit.runs.files import write_directory, write_json

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
MAIN = "default"
"""the adapter that a run trains"""


@dataclass(frozen=True)
class Trained:
    """What a run knows of the policy it made, beside its checkpoints."""

    path: Path
    world: Environment
    world_name: str
    """as `--world` takes it"""
    families: tuple[str, ...]
    """empty: all"""
    context: Context
    base: Base
    sampling: Sampling
    max_steps: int
    settings: dict[str, Any]
    taught: Mapping[str, Any] = field(default_factory=dict)
    """of the logs it was taught from, where it was"""

    @property
    def skill(self) -> str:
        """The world's own word for these families, `unified` for all of them."""
        served = set(self.families or self.world.families)
        for skill, families in self.world.skill_families.items():
            if set(families) == served:
                return skill
        return UNIFIED if served == set(self.world.families) else "+".join(self.families)


def export_module(trained: Trained, checkpoint: Checkpoint, place: Path, skill: str = "") -> Module:
    """Write `place`/<skill>."""
    skill = skill or trained.skill
    policy = checkpoint.path / "policy"
    manifest = _policy_manifest(policy)
    weights = policy / "adapters" / MAIN if manifest["lora"] else policy / "model"
    if not weights.is_dir():
        raise TacitError(
            f"checkpoint {checkpoint.path} has no {weights.relative_to(checkpoint.path)}: there is nothing to export."
        )
    draft = _draft(trained.context)
    world = draft.world_name if draft else trained.world_name
    module = Module(
        path=place / skill,
        world=world,
        skill=skill,
        families=trained.families or trained.world.families,
        tracker=tracker_version(trained.context),
        wording=wording_version(trained.context),
        context=describe_context(trained.context, trained.world),
        adapter=manifest["lora"],
        base=trained.base,
        fingerprint=trained.base.fingerprint(trained.world),
        sampling=trained.sampling,
        max_steps=trained.max_steps,
        scores=_scores(checkpoint, trained.world.name),
        digest=manifest["digest"],
        run={"name": trained.path.name, "checkpoint": checkpoint.path.name, "settings": {**trained.settings, "world": world}},
        code=versions(),
        files={},
        taught=trained.taught,
        draft=draft,
    )
    for leftover in place.glob(f".{skill}.*.tmp"):  # of a process that was killed while writing
        shutil.rmtree(leftover, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    write_directory(module.path, lambda directory: _fill(directory, weights, module))
    return module


def _draft(context: Context) -> Carried | None:
    """What the module must bring along: a draft lies in the folder of whoever made it."""
    tracker = getattr(context, "tracker", None)
    return carried_by(tracker) if isinstance(tracker, FencedDraft) else None


def is_exported(checkpoint: Checkpoint, module: Module) -> bool:
    """Whether a module is the present state of a checkpoint, so that it need not be written again."""
    return module.digest == _policy_manifest(checkpoint.path / "policy")["digest"] and not module.damage()


def _fill(directory: Path, weights: Path, module: Module) -> None:
    names = (ADAPTER, ADAPTER_CONFIG) if module.adapter else [f.name for f in sorted(weights.iterdir()) if f.is_file()]
    for name in names:
        shutil.copyfile(weights / name, directory / name)
    if module.adapter:
        _name_base(directory / ADAPTER_CONFIG, module.base.model)
    if module.draft:
        make_known(module.draft)
        for name, text in module.draft.files.items():
            (directory / name).write_text(text, encoding="utf-8", newline="")
    files = {file.name: hash_file(file) for file in sorted(directory.iterdir())}
    write_json(directory / MANIFEST, replace(module, files=files).to_json())


def _name_base(file: Path, model: str) -> None:
    """peft writes the directory that the base was loaded from, which is where it lay on one machine."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": model, "target_modules": sorted(config["target_modules"])}  # theirs is a set
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _scores(checkpoint: Checkpoint, world: str) -> dict[str, dict[str, Any]]:
    """The last evaluation of each earlier stage, and this checkpoint's own: practice measured at another step is not its. Of a
    run in several worlds, what was measured in this one."""
    evaluations = [in_world(e, world) for e in checkpoint.state()["evaluations"]]
    last = {e["stage"]: e for e in evaluations if e["stage"] != checkpoint.stage or e["step"] == checkpoint.step}
    return {stage: last[stage] for stage in ("untrained", "sft", "rl") if stage in last}


def _policy_manifest(policy: Path) -> dict[str, Any]:
    try:
        return json.loads((policy / "policy.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read the checkpoint {policy}: {error}.") from error


# A module in words, for whoever is handed one: README.md, which is the card where it is published.

FORM = """---
base_model: {base}
license: {licence}
library_name: tacit
tags: [tacit, agent, skill-module, {tag}]
---
# {skill}: a skill module for {world}

Plays {families} of world `{world}`. {what}, {size}.{draft}

| | |
|---|---|
| base | `{base}`, fingerprint `{fingerprint}` |
| licence of the base | {licence} |
| reads | {context}, wording version {wording}{tracker} |
| plays with | temperature {temperature:g}, at most {max_steps} turns |
| weights | `{digest}` |
| made by | tacit {tacit}, run `{run}`, checkpoint `{checkpoint}` |

## Scores

{scores}

    tacit modules install FILE --out modules        checks files, base, tracker and wording; --verify plays the panel again
    tacit play --policy modules/{skill}
"""


def card_of(module: Module, licence: str) -> str:
    return FORM.format(
        base=module.base.model,
        licence=licence,
        world=module.place,
        tag=module.draft.world or "work" if module.draft else module.world,
        draft=_draft_text(module),
        skill=module.skill,
        families=", ".join(module.families),
        what="A LoRA adapter on its base" if module.adapter else "A whole model",
        size=f"{sum((module.path / name).stat().st_size for name in module.files):,} bytes of files",
        fingerprint=module.fingerprint,
        context=module.context["kind"].replace("_", " "),
        wording=module.wording,
        tracker=f", tracker {module.tracker}" if module.tracker else "",
        temperature=module.sampling.temperature,
        max_steps=module.max_steps,
        digest=module.digest,
        tacit=module.code.get("tacit", "?"),
        run=module.run["name"],
        checkpoint=module.run["checkpoint"],
        scores=_scores_text(module.scores) if module.scores else "It was not measured.",
    )


def _draft_text(module: Module) -> str:
    if module.draft is None:
        return ""
    files = ", ".join(f"`{name}`" for name in module.draft.files)
    return (
        f" What it reads or was paid by was drafted by a model ({files}); that text is run, behind a fence, whenever it plays."
    )


def _scores_text(scores: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| after | success | 95% interval | episodes | panel | hash |", "|---|---|---|---|---|---|"]
    for stage, score in scores.items():
        low, high = score["interval"]
        lines.append(
            f"| {stage} | {score['success']:.1%} | [{low:.1%}, {high:.1%}] | {score['episodes']} | {score['panel']} | "
            f"`{score['panel_hash']}` |"
        )
    return "\n".join(lines)
