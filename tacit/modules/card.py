"""A module in words, for whoever is handed one: README.md, which is the card where it is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.modules.module import Module

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
        draft=_draft(module),
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
        scores=_scores(module.scores) if module.scores else "It was not measured.",
    )


def _draft(module: Module) -> str:
    if module.draft is None:
        return ""
    files = ", ".join(f"`{name}`" for name in module.draft.files)
    return (
        f" What it reads or was paid by was drafted by a model ({files}); that text is run, behind a fence, whenever it plays."
    )


def _scores(scores: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| after | success | 95% interval | episodes | panel | hash |", "|---|---|---|---|---|---|"]
    for stage, score in scores.items():
        low, high = score["interval"]
        lines.append(
            f"| {stage} | {score['success']:.1%} | [{low:.1%}, {high:.1%}] | {score['episodes']} | {score['panel']} | "
            f"`{score['panel_hash']}` |"
        )
    return "\n".join(lines)
