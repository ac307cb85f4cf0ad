"""Skill modules from logs: episodes are sorted by skill into DIR/logs, and each skill's run imitates its own.

    DIR/logs/coverage.json          what there was of each family, and every line that could not be used
    DIR/logs/<skill>.jsonl          its won episodes, as `--sft.from` reads them
    DIR/logs/<skill>.kept.jsonl     where there is no world: one won episode in ten, kept back to be measured by

With a world the run then practises and is measured as any other. Without one it imitates, and all that can be said of it is how
often it does on the kept episodes what was done there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world, prepare
from tacit.assembly.players import open_target
from tacit.assembly.recipe import Document, Recipe
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Request
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.models.fingerprint import hash_file
from tacit.modules.logs import Coverage, Logged, Logs, as_lines, cover, family_in, family_without_world, read_logs, report_of
from tacit.modules.training import RUNS, Lesson, choose_skills
from tacit.modules.work import NAME as WORK_NAME
from tacit.rollout.retelling import told
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import SETTINGS
from tacit.runs.files import write_json, write_text
from tacit.training.recordings import Known, Reading, read_recordings, stranger, untellable

LOGS, COVERAGE, KEPT = "logs", "coverage.json", ".kept.jsonl"
KEEP_BACK = 10
"""one won episode in so many is kept back where there is no world to be measured in, if there are as many"""
USUAL_STEPS = 300
"""of imitation, where no number is said"""


@dataclass(frozen=True)
class Taught:
    lessons: list[Lesson]
    logs: Logs
    covered: list[Coverage]
    without: dict[str, str]
    """skill -> why it gets no module"""


def with_defaults(document: Document, logs: Sequence[Path]) -> Document:
    """The settings with what logs decide: where no world is named there is none, and then there is no practice."""
    sft, schedule = dict(document.get("sft", {})), dict(document.get("schedule", {}))
    if sft.get("from"):
        raise TacitError(f"sft.from = {sft['from']!r} and --from are both logs to imitate; name them once.")
    whole = {"world": WORK_NAME, **document}
    whole["sft"] = {"steps": USUAL_STEPS, "tasks": 1_000_000, **sft, "from": str(logs[0])}
    if not open_world(str(whole["world"])).playable:
        whole["schedule"] = {"iterations": 0, **schedule}
    return whole


def plan_from_logs(recipe: Recipe, skills: str, out: Path, paths: Sequence[Path]) -> Taught:
    """What cannot be trained is refused here; then the logs are sorted into `out`, and nothing else is written."""
    world = open_world(recipe.world)
    if recipe.train.families:
        raise TacitError("a module's skill decides its families; leave `families` out, and choose skills with --skills.")
    context = prepare(recipe).method.context
    tasks = world.tasks_of(recipe.train.split, recipe.train.tasks, recipe.train.seed) if world.playable else []
    family_of = family_in(world, tasks) if world.playable else family_without_world
    logs = _tellable(read_logs(paths, family_of), world, tasks, context)
    known = world if world.playable else replace(world, families=logs.families, skills={})
    covered = cover(logs, known.families)
    if not any(logged.recording.success for logged in logs.episodes):
        first = f" The first line that could not be used: {logs.unusable[0]}." if logs.unusable else ""
        raise TacitError(f"there is no won episode to imitate in {', '.join(map(str, logs.files))}.{first}")
    sorted_out: dict[str, tuple[tuple[str, ...], list[Logged]]] = {}
    without: dict[str, str] = {}
    for skill, families in choose_skills(known, skills).items():
        won = [logged for logged in logs.of(families) if logged.recording.success]
        if won:
            sorted_out[skill] = (families, won)
        else:
            without[skill] = f"no won episode of {', '.join(families)}"
    if not sorted_out:
        raise TacitError(f"no module can be made: {'; '.join(f'{skill}: {why}' for skill, why in without.items())}.")
    for skill, (_, won) in sorted_out.items():
        _write(out, skill, won, world)
    write_json(out / LOGS / COVERAGE, dict(report_of(logs, covered)))
    lessons = [_lesson(recipe, out, world, skill, families) for skill, (families, _) in sorted_out.items()]
    return Taught(lessons, logs, covered, without)


def _tellable(logs: Logs, world: Environment, tasks: Sequence[Task], context: Context) -> Logs:
    """Without the won episodes that imitation would leave out: a tracker may not be able to read what stands in a line."""
    known = Known(world, tasks)
    reasons = [untellable(each.recording, known, context) if each.recording.success else "" for each in logs.episodes]
    known.close()
    paired = list(zip(logs.episodes, reasons, strict=True))
    return replace(
        logs,
        episodes=[logged for logged, reason in paired if not reason],
        unusable=logs.unusable + [f"{logged.place}: {reason}" for logged, reason in paired if reason],
    )


def _lesson(recipe: Recipe, out: Path, world: Environment, skill: str, families: tuple[str, ...]) -> Lesson:
    train = replace(recipe.train, sft=replace(recipe.train.sft, from_=str(out / LOGS / f"{skill}.jsonl")))
    if world.playable and set(families) != set(world.families):
        train = replace(train, families=",".join(families))
    return Lesson(skill, families, prepare(replace(recipe, out=out / RUNS / skill, train=train)))


def _write(out: Path, skill: str, won: Sequence[Logged], world: Environment) -> None:
    every = 0 if world.playable or len(won) < KEEP_BACK else KEEP_BACK
    kept = won[every - 1 :: every] if every else []
    shown = [logged for number, logged in enumerate(won, start=1) if not every or number % every]
    place, text = out / LOGS / f"{skill}.jsonl", as_lines(shown)
    if (out / RUNS / skill / SETTINGS).exists() and place.exists() and place.read_text(encoding="utf-8") != text:
        raise TacitError(
            f"the logs are not those that {out / RUNS / skill} began with ({place} would change); give those again, or name "
            "another --out."
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, text)
    if kept:
        write_text(place.with_suffix(KEPT), as_lines(kept))


def card(lesson: Lesson, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What the module says of its teaching."""
    place = Path(lesson.recipe.train.sft.from_)
    world = lesson.prepared.worlds[0]
    own = list(read_recordings(place, Reading()))[: lesson.recipe.train.sft.tasks]
    said = {
        "from": "logs",
        "episodes": len(own),
        "turns": sum(len(recording.actions) for recording in own),
        "sha256": hash_file(place),
        "practised": checkpoint.stage == "rl",
    }
    if world.playable:
        return said
    return {
        **said,
        "measured": "never: there was no world to play in",
        **_agreement(lesson, place.with_suffix(KEPT), checkpoint),
    }


def _agreement(lesson: Lesson, kept: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """On episodes it was not shown, the share of turns at which it does, greedily, what was done there."""
    if not kept.exists():
        return {}
    player = open_target(str(lesson.recipe.out), {}, checkpoint.path.name)
    sampling = replace(player.sampling, temperature=0.0, stop=player.context.format.stop)
    same = turns = 0
    for recording in read_recordings(kept, Reading()):
        task, course = stranger(recording, player.world.name), recording.as_recorded()
        shown = list(told(player.context, task, course, tokenizer=player.policy, room=sampling.max_tokens))
        asked = [turn for turn in shown if turn.fits]
        written = player.policy.sample([Request(turn.tokens, 0) for turn in asked], sampling) if asked else []
        same += sum(
            player.context.format.parse(done.text).action == turn.action for done, turn in zip(written, asked, strict=True)
        )
        turns += len(shown)
    return {"kept_turns": turns, "same_action": round(same / turns, 4) if turns else 0.0}
