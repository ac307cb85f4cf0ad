"""Export a checkpoint as a module, and render a module's card.

Export copies files and loads no model: a checkpoint already stores the adapter in peft's format or the model in transformers'.
The optimizer, the reference model and the value head are left out.
"""

from __future__ import annotations

import json
import re
import shutil
import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.config.checks import open_world
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.engines.models.tiny import hash_file
from tacit.evaluation.scores import in_world
from tacit.modules.carrying import register_draft
from tacit.modules.drafting.tracker import SandboxedDraft
from tacit.modules.module import MANIFEST, UNIFIED, Base, Module, describe_context
from tacit.prompts.history import StateBlock
from tacit.runs.directory import Checkpoint, open_checkpoints, read_settings, versions
from tacit.runs.files import write_directory, write_json
from tacit.training.setup import completion_limit, evaluation_sampling

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
MAIN_ADAPTER = "default"  # the adapter that a run trains


def export_run(
    run: Path,
    checkpoint: str,
    out: Path,
    skill: str = "",
    world: str = "",
    families: tuple[str, ...] = (),
    from_logs: Mapping[str, Any] | None = None,
) -> Module:
    """Write a checkpoint of a run as the module `out`/<skill>. `world`: one of the run's worlds. `families`: those that the
    module serves (default: those that it was trained on). `from_logs`: the manifest's entry about imitated logs."""
    document = read_settings(run)
    run_recipe = replace(Recipe.from_json(document), out=run)
    recipe = run_recipe.alone(world)
    if run_recipe.tiny is not None and len(run_recipe.places) > 1:
        raise TacitError(
            f"{run} trained a model from scratch in several worlds, so its vocabulary covers all of them; a module covers one. "
            "Start from a saved model (--model tiny-base)."
        )
    environment, saved = open_world(recipe.world), open_checkpoints(run).find(checkpoint)
    if not environment.playable and from_logs is None:
        raise TacitError(
            f"{run} was trained from logs alone, and its families come from them: repeat the command that made it (tacit "
            "modules train --from …), with --checkpoint for another checkpoint."
        )
    families = families or recipe.train.family_names or environment.families
    if not skill:  # the world's name for these families
        same_families = (name for name, own in environment.skill_families.items() if set(own) == set(families))
        skill = next(same_families, UNIFIED if set(families) == set(environment.families) else "+".join(families))
    policy = saved.path / "policy"
    manifest = _read_policy_manifest(policy)
    weights = policy / "adapters" / MAIN_ADAPTER if manifest["lora"] else policy / "model"
    if not weights.is_dir():
        raise TacitError(f"nothing to export: checkpoint {saved.path} has no {weights.relative_to(saved.path)}.")
    context, base = recipe.settings.context(environment), Base(recipe.model, recipe.train.seed, recipe.tiny)
    draft = context.tracker.draft if isinstance(context.tracker, SandboxedDraft) else None
    world_name = draft.world_name if draft else recipe.world
    settings = document if len(run_recipe.places) == 1 else recipe.to_json()
    context_fields = describe_context(context, environment)
    assert context.wording is not None, "describe_context refuses contexts without a wording"
    module = Module(
        path=out / skill,
        world=world_name,
        skill=skill,
        families=families,
        tracker=context.tracker.version if isinstance(context, StateBlock) and context.block else None,
        wording=context.wording.version,
        context=context_fields,
        adapter=manifest["lora"],
        base=base,
        fingerprint=base.fingerprint(environment),
        sampling=evaluation_sampling(recipe.train, completion_limit(recipe.train, context, environment)),
        max_steps=recipe.train.evaluation.max_steps or environment.max_steps,
        scores=portable_scores(saved, environment.name),
        digest=manifest["digest"],
        run={"name": run.name, "checkpoint": saved.path.name, "settings": {**settings, "world": world_name}},
        code=versions(),
        files={},
        from_logs=from_logs or {},
        draft=draft,
    )
    for leftover in out.glob(f".{skill}.*.tmp"):  # from a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_directory(module.path, lambda directory: _write_files(directory, weights, module))
    return module


def is_exported(checkpoint: Checkpoint, module: Module) -> bool:
    """Whether an intact module already has this checkpoint's weights."""
    return module.digest == _read_policy_manifest(checkpoint.path / "policy")["digest"] and not module.find_damage()


def _write_files(directory: Path, weights: Path, module: Module) -> None:
    names = (ADAPTER, ADAPTER_CONFIG) if module.adapter else [f.name for f in sorted(weights.iterdir()) if f.is_file()]
    for name in names:
        shutil.copyfile(weights / name, directory / name)
    if module.adapter:  # peft writes the local path of the base, and the target modules as a set
        file = directory / ADAPTER_CONFIG
        config = read_json(file)
        config |= {"base_model_name_or_path": module.base.model, "target_modules": sorted(config["target_modules"])}
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if module.draft:
        register_draft(module.draft)
        for name, text in module.draft.files.items():
            (directory / name).write_text(text, encoding="utf-8", newline="")
    files = {file.name: hash_file(file) for file in sorted(directory.iterdir())}
    write_json(directory / MANIFEST, replace(module, files=files).to_json())


def portable_scores(checkpoint: Checkpoint, world: str) -> dict[str, dict[str, Any]]:
    """This checkpoint's evaluation and the last one of each earlier stage. Only results in `world` count."""
    evaluations = [in_world(e, world) for e in checkpoint.state()["evaluations"]]
    latest = {e["stage"]: e for e in evaluations if e["stage"] != checkpoint.stage or e["step"] == checkpoint.step}
    return {stage: latest[stage] for stage in ("untrained", "sft", "rl") if stage in latest}


def _read_policy_manifest(policy: Path) -> dict[str, Any]:
    try:
        return read_json(policy / "policy.json")
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read the checkpoint {policy}: {error}.") from error


CARD_TEMPLATE = """---
base_model: {module.base.model:yaml}
license: {license:yaml}
library_name: tacit
tags: [tacit, agent, skill-module, {tag:yaml}]
---
# {module.skill}: a skill module for {module.display_world}

Plays {families} of world `{module.display_world}`. {what}, {size}.{draft:raw}

| | |
|---|---|
| world | `{module.display_world}` |
| base | `{module.base.model}`, fingerprint `{module.fingerprint}` |
| license of the base | {license} |
| reads | {context}, wording version {module.wording} |
| tracker | {tracker} |
| plays with | temperature {module.sampling.temperature:g}, at most {module.max_steps} turns |
| weights | `{module.digest}` |
| made by | tacit {tacit}, run `{run}`, checkpoint `{checkpoint}` |

## Scores

{scores:raw}

Repeat the last one (the same panel, sampling and seed; counts are equal on the same hardware):

    tacit modules pull OWNER/NAME --out modules        or, from a file: tacit modules install FILE --out modules
    tacit eval modules/{module.skill}
"""


SCORE_LINE = "| {stage} | {success:.1%} | [{low:.1%}, {high:.1%}] | {episodes} | {panel} | `{panel_hash}` |"
PLAIN_YAML = re.compile(r"[A-Za-z0-9/]([A-Za-z0-9._/:+-]*[A-Za-z0-9])?")
MAX_VALUE = 500  # characters


class _Card(string.Formatter):
    """Escapes values of an untrusted manifest: none can end its line, table cell or code span, or become HTML or a link."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec == "raw":
            return value
        text = super().format_field(value, "" if spec == "yaml" else spec)
        text = "".join("?" if character in "`|<>" or not character.isprintable() else character for character in text)
        text = (text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…").replace("](", "] (")
        return json.dumps(text, ensure_ascii=False) if spec == "yaml" and not PLAIN_YAML.fullmatch(text) else text


def render_card(module: Module, license_name: str) -> str:
    """The module's README.md, with front matter as the Hugging Face hub reads it."""
    card, lines = _Card(), ["| after | success | 95% interval | episodes | panel | hash |", "|---|---|---|---|---|---|"]
    for stage, score in module.scores.items():
        low, high = score["interval"]
        lines.append(card.format(SCORE_LINE, **{**score, "stage": stage, "low": low, "high": high}))
    files = ", ".join(f"`{name}`" for name in module.draft.files) if module.draft else ""
    drafted = f" A model drafted its tracker or rewards ({files}); the draft runs in a sandbox whenever the module plays."
    return card.format(
        CARD_TEMPLATE,
        module=module,
        license=license_name,
        tag=module.draft.world or "work" if module.draft else module.world,
        draft=drafted if module.draft else "",
        families=", ".join(module.families),
        what="A LoRA adapter on its base" if module.adapter else "A full model",
        size=f"{sum((module.path / name).stat().st_size for name in module.files):,} bytes of files",
        context=str(module.context.get("kind", "?")).replace("_", " "),
        tracker=f"version {module.tracker}" if module.tracker else "none",
        tacit=module.code.get("tacit", "?"),
        run=module.run.get("name", "?"),
        checkpoint=module.run.get("checkpoint", "?"),
        scores="\n".join(lines) if module.scores else "Not evaluated.",
    )
