"""One module for every skill of a world, or one for all of them.

For each skill an ordinary run under DIR/runs/<skill>, told to train and measure on the skill's families: imitation, then
practice, as the settings say. Then it is exported as DIR/<skill>. Finished runs are skipped and stopped ones go on where they
were, so the same command, given again after whatever happened, ends with the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.config.agents import open_target
from tacit.config.checks import Prepared, check_new_run, is_finished, open_world, prepare
from tacit.config.recipe import Document, Recipe
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.protocols import Request
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.models.bases import hash_file
from tacit.modules.export import Trained, export_module, is_exported
from tacit.modules.logs import NAME as WORK_NAME
from tacit.modules.logs import Coverage, Logged, Logs, as_lines, cover, family_in, family_without_world, read_logs, report_of
from tacit.modules.module import MANIFEST, UNIFIED, Base, Module, read_module
from tacit.rollout.replay import render_turns
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import SETTINGS, open_checkpoints, read_settings
from tacit.runs.files import write_json, write_text
from tacit.training.recordings import Known, Reading, read_recordings, stranger, untellable
from tacit.training.setup import completion_limit, evaluation_sampling

ALL, RUNS = "all", "runs"
Train = Callable[[Prepared, bool], int]
"""does a run, or goes on with it where the last says so; 0 where it was finished"""


@dataclass(frozen=True)
class Lesson:
    """A skill, and the run that is to teach it."""

    skill: str
    families: tuple[str, ...]
    prepared: Prepared

    @property
    def recipe(self) -> Recipe:
        return self.prepared.recipe


def choose_skills(world: Environment, names: str) -> dict[str, tuple[str, ...]]:
    """skill -> its families, for `all`, `unified`, or names with commas between."""
    known = {**world.skill_families, UNIFIED: world.families}
    if names == ALL:
        return dict(world.skill_families)
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise TacitError(f"--skills names none; there are {ALL}, {', '.join(known)}.")
    for name in chosen:
        if name not in known:
            raise unknown(f"skill of world {world.name!r}", name, [*known, ALL])
    return {name: known[name] for name in chosen}


def plan_lessons(recipe: Recipe, skills: str, out: Path) -> list[Lesson]:
    """What cannot be trained is refused here, before anything is written."""
    world = open_world(recipe.world)
    if recipe.train.families:
        raise TacitError("a module's skill decides its families; leave `families` out, and choose skills with --skills.")
    planned = []
    for skill, families in choose_skills(world, skills).items():
        # All families together are none in particular: such a run is measured on the panel that any other is.
        named = "" if set(families) == set(world.families) else ",".join(families)
        own = replace(recipe, out=out / RUNS / skill, train=replace(recipe.train, families=named))
        planned.append(Lesson(skill, families, prepare(own)))
    return planned


def train_modules(
    planned: Sequence[Lesson],
    out: Path,
    checkpoint: str,
    train: Train,
    say: Callable[[str], None],
    card: Callable[[Lesson, Checkpoint], Mapping[str, Any]] = lambda lesson, checkpoint: {},
) -> int:
    """Every run that is not done, and every module that is not there; the code of the run that was stopped, else 0. `card`:
    what a module says of its teaching."""
    for number, lesson in enumerate(planned, start=1):
        place = lesson.recipe.out
        started = (place / SETTINGS).exists()
        if started and is_finished(place, Recipe.from_json(read_settings(place)), lesson.recipe):
            say(f"{lesson.skill}: {place} is finished")
        else:
            if not started:
                check_new_run(place)
            say(f"\nskill {number} of {len(planned)}: {lesson.skill}, for {', '.join(lesson.families)}")
            if code := train(lesson.prepared, started):
                say("Or give the same command again, which goes on from here with all skills.")
                return code
        found = find_checkpoint(place, checkpoint)
        if not _is_there(found, out / lesson.skill):
            trained = replace(trained_by(place), families=lesson.families, taught=card(lesson, found))
            module = export_module(trained, found, out, lesson.skill)
            say(f"{lesson.skill}: {module.run['checkpoint']} exported to {module.path}")
    return 0


def export_run(run: Path, checkpoint: str, out: Path, skill: str = "", world: str = "") -> Module:
    trained = trained_by(run, world)
    if not trained.world.playable:
        raise TacitError(
            f"{run} was taught from logs alone, and its families and its card come from them: give the command again that made "
            "it (tacit modules train --from …), with --checkpoint for another one."
        )
    return export_module(trained, find_checkpoint(run, checkpoint), out, skill)


def trained_by(run: Path, where: str = "") -> Trained:
    """What the run at this place knows of the policy it made. A module is for one world: `where`, if the run has several."""
    document = read_settings(run)
    whole = replace(Recipe.from_json(document), out=run)
    recipe = whole.alone(where)
    if whole.tiny is not None and len(whole.places) > 1:
        raise TacitError(
            f"{run} began from scratch in several worlds, so its words are those of all of them, and a module knows one. Begin "
            "from a saved model (--model tiny-base)."
        )
    world = open_world(recipe.world)
    context = recipe.settings.context(world)
    return Trained(
        path=run,
        world=world,
        world_name=recipe.world,
        families=recipe.train.family_names,
        context=context,
        base=Base(recipe.model, recipe.train.seed, recipe.tiny),
        sampling=evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world)),
        max_steps=recipe.train.evaluation.max_steps or world.max_steps,
        settings=document if len(whole.places) == 1 else recipe.to_json(),
    )


def find_checkpoint(run: Path, name: str) -> Checkpoint:
    saved = open_checkpoints(run)
    if not saved.all():
        raise TacitError(f"{run} has no checkpoint yet, so there is nothing to export.")
    return saved.find(name)


def _is_there(checkpoint: Checkpoint, place: Path) -> bool:
    return (place / MANIFEST).is_file() and is_exported(checkpoint, read_module(place))


# Skill modules from logs: episodes are sorted by skill into DIR/logs, and each skill's run imitates its own.
#
#     DIR/logs/coverage.json          what there was of each family, and every line that could not be used
#     DIR/logs/<skill>.jsonl          its won episodes, as `--sft.from` reads them
#     DIR/logs/<skill>.kept.jsonl     where there is no world: one won episode in ten, kept back to be measured by
#
# With a world the run then practises and is measured as any other. Without one it imitates, and all that can be said of it is
# how often it does on the kept episodes what was done there.

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
        shown = list(render_turns(player.context, task, course, tokenizer=player.policy, room=sampling.max_tokens))
        asked = [turn for turn in shown if turn.fits]
        written = player.policy.sample([Request(turn.tokens, 0) for turn in asked], sampling) if asked else []
        same += sum(
            player.context.format.parse(done.text).action == turn.action for done, turn in zip(written, asked, strict=True)
        )
        turns += len(shown)
    return {"kept_turns": turns, "same_action": round(same / turns, 4) if turns else 0.0}
