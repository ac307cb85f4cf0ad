"""Train one module per skill of a world, or one for all skills; optionally from logs.

Each skill gets an ordinary run under DIR/runs/<skill> that trains and evaluates on the skill's families. The result is exported
to DIR/<skill>. Finished runs are skipped and stopped ones resume, so repeating the command completes the set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.config.agents import open_target
from tacit.config.checks import Prepared, check_new_run, is_finished, open_world, prepare
from tacit.config.recipe import Document, Recipe
from tacit.core.errors import TacitError, unknown
from tacit.core.protocols import Request
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.models.tiny import hash_file
from tacit.modules.export import export_run, is_exported
from tacit.modules.module import MANIFEST, UNIFIED, read_module
from tacit.modules.work import NAME as WORK_NAME
from tacit.rollout.replay import render_turns
from tacit.runs.directory import SETTINGS, Checkpoint, open_checkpoints, read_settings
from tacit.runs.files import write_json, write_text
from tacit.training.imitation import ReadReport, Recording, TaskReplayer, read_recordings, reason_unusable, task_of_recording

# Logs of recorded episodes: read, sorted by family and counted. Accepts files (JSON lines, plain or gzipped, in any format of
# `training/imitation`) and directories.

PATTERNS = ("*.jsonl", "*.jsonl.gz")
FEW = 12
"""fewer won episodes of a family get a remark: with 12 demonstrations a 1M-parameter policy won 42% of new tasks by imitation,
with 6 only 21% (docs/experiments/constant_context.md)"""
DEFAULT_FAMILY = "work"  # of episodes without a family, if there is no world
_FAMILY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")


@dataclass(frozen=True)
class LoggedEpisode:
    file: Path
    recording: Recording
    family: str

    @property
    def location(self) -> str:
        return f"{self.file} line {self.recording.line}"

    def to_json(self) -> dict[str, Any]:
        """In the format of `--sft.from`."""
        recording = self.recording
        turns = [
            {"saw": saw, "action": action, **({} if parsed else {"valid": False})}
            for saw, action, parsed in zip(recording.seen, recording.actions, recording.parsed, strict=False)
        ]
        final = {"saw": recording.seen[-1]} if len(recording.seen) > len(recording.actions) else {}
        identity = {"task": recording.task, "goal": recording.goal, "family": self.family, "success": recording.success}
        return {**identity, "turns": turns, **final, "source": self.location}


@dataclass
class Logs:
    episodes: list[LoggedEpisode] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)  # `FILE line N: reason`
    files: list[Path] = field(default_factory=list)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted({logged.family for logged in self.episodes}))

    def select(self, families: Iterable[str]) -> list[LoggedEpisode]:
        wanted = set(families)
        return [logged for logged in self.episodes if logged.family in wanted]


@dataclass(frozen=True)
class Coverage:
    family: str
    episodes: int
    won: int
    turns: int  # of won episodes

    @property
    def remark(self) -> str:
        if not self.episodes:
            return "none"
        if not self.won:
            return "nothing won: nothing to imitate"
        return f"few: fewer than {FEW} won" if self.won < FEW else ""


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """The given files, and all logs in the given directories."""
    files: list[Path] = []
    for path in (path.expanduser() for path in paths):
        logs_found = sorted({file for pattern in PATTERNS for file in path.rglob(pattern)}) if path.is_dir() else [path]
        if not logs_found:
            raise TacitError(f"--from {path}: the directory has no logs ({', '.join(PATTERNS)}).")
        for file in logs_found:
            if not file.is_file():
                raise TacitError(f"--from {file}: the file does not exist.")
            files += [file] if file not in files else []
    return files


def read_logs(paths: Sequence[Path], family_of: Callable[[Recording], str]) -> Logs:
    """Read all episodes and list all unusable lines. `family_of` returns an episode's family, or ""."""
    logs = Logs(files=find_logs(paths))
    for file in logs.files:
        report = ReadReport()
        for recording in read_recordings(file, report):
            family = family_of(recording)
            if not family:
                reason = f"unknown family {recording.family!r}" if recording.family else "no family"
                logs.unusable.append(f"{file} line {recording.line}: {reason}, and unknown task and goal")
            elif not _FAMILY_NAME.fullmatch(family):
                logs.unusable.append(f"{file} line {recording.line}: family {family[:80]!r} cannot be the name of a module")
            elif not recording.goal and not recording.task:
                logs.unusable.append(f"{file} line {recording.line}: names neither a task nor a goal")
            else:
                logs.episodes.append(LoggedEpisode(file, recording, family))
        logs.unusable += [f"{file} {reason}" for reason in report.unusable]
    return logs


def family_without_world(recording: Recording) -> str:
    return recording.family or DEFAULT_FAMILY


def make_family_lookup(world: Environment, tasks: Sequence[Task]) -> Callable[[Recording], str]:
    """A lookup by the recording's own family, else its task, else its goal, else the goal's words."""
    by_id, lookup = {task.id: task.family for task in tasks}, TaskReplayer(world, tasks)

    def family_of(recording: Recording) -> str:
        if recording.family in world.families:
            return recording.family
        return by_id.get(recording.task) or lookup.family_of(replace(recording, family=""))

    return family_of


def count_coverage(logs: Logs, families: Iterable[str]) -> list[Coverage]:
    """Counts of the given families and of any others in the logs."""
    coverage = []
    for family in dict.fromkeys((*families, *logs.families)):
        recordings = [logged.recording for logged in logs.episodes if logged.family == family]
        won = [recording for recording in recordings if recording.success]
        coverage.append(Coverage(family, len(recordings), len(won), sum(len(recording.actions) for recording in won)))
    return coverage


def to_jsonl(episodes: Sequence[LoggedEpisode]) -> str:
    return "".join(json.dumps(logged.to_json(), ensure_ascii=False) + "\n" for logged in episodes)


# A run for each skill.

ALL, RUNS = "all", "runs"
Train = Callable[[Prepared, bool], int]  # (prepared, resume) -> exit code; 0 if the run finished


@dataclass(frozen=True)
class SkillRun:
    skill: str
    families: tuple[str, ...]  # families that the module will serve; `prepared.recipe` has those it trains on
    prepared: Prepared


def choose_skills(world: Environment, names: str, families: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """skill -> the families it serves, for `all`, `unified` or comma-separated names. With `families`, only skills that serve
    some of them."""
    for family in families:
        if family not in world.families:
            raise unknown(f"family of world {world.name!r}", family, world.families)
    served = {**world.skill_families, UNIFIED: tuple(families) or world.families}
    chosen = list(world.skill_families) if names == ALL else [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise TacitError(f"--skills is empty; choose from {ALL}, {', '.join(served)}.")
    for name in chosen:
        if name not in served:
            raise unknown(f"skill of world {world.name!r}", name, [*served, ALL])
    skills = {name: served[name] for name in chosen if not families or set(families) & set(served[name])}
    if not skills:
        raise TacitError(f"--families {','.join(families)}: none of the skills {', '.join(chosen)} serves them.")
    return skills


def plan_skill_runs(recipe: Recipe, skills: str, out: Path) -> list[SkillRun]:
    world, only_families = open_world(recipe.world), recipe.train.family_names
    planned = []
    for skill, families in choose_skills(world, skills, only_families).items():
        trained = [family for family in families if not only_families or family in only_families]
        # A run on all families leaves `families` empty, so that its panel is the world's default one.
        names = "" if set(trained) == set(world.families) else ",".join(trained)
        run = replace(recipe, out=out / RUNS / skill, train=replace(recipe.train, families=names))
        planned.append(SkillRun(skill, families, prepare(run)))
    return planned


def train_modules(
    planned: Sequence[SkillRun],
    out: Path,
    checkpoint: str,
    train: Train,
    say: Callable[[str], None],
    describe: Callable[[SkillRun, Checkpoint], Mapping[str, Any]] = lambda planned, checkpoint: {},
) -> int:
    """Finish every run and export every missing module. Return the exit code of a stopped run, else 0. `describe` returns a
    module's `from_logs` entry."""
    for run in (skill_run.prepared.recipe.out for skill_run in planned):
        if not (run / SETTINGS).exists():
            check_new_run(run)
    for number, skill_run in enumerate(planned, start=1):
        skill, run = skill_run.skill, skill_run.prepared.recipe.out
        started = (run / SETTINGS).exists()
        if started and is_finished(run, Recipe.from_json(read_settings(run)), skill_run.prepared.recipe):
            say(f"{skill}: {run} is finished")
        else:
            say(f"\nskill {number} of {len(planned)}: {skill}, for {', '.join(skill_run.families)}")
            if code := train(skill_run.prepared, started):
                say("Or repeat the same command to continue with all skills.")
                return code
        best, target = open_checkpoints(run).find(checkpoint), out / skill
        if not (target / MANIFEST).is_file() or not is_exported(best, read_module(target)):
            families, from_logs = skill_run.families, describe(skill_run, best)
            module = export_run(run, best.path.name, out, skill, families=families, from_logs=from_logs)
            say(f"{skill}: {module.run['checkpoint']} exported to {module.path}")
    return 0


# Modules from logs: episodes are sorted by skill into DIR/logs, and each skill's run imitates its own.
#
#     DIR/logs/coverage.json          counts per family, and every unusable line
#     DIR/logs/<skill>.jsonl          won episodes, in the format of `--sft.from`
#     DIR/logs/<skill>.kept.jsonl     without a world: one won episode in ten, held out
#
# With a world, RL and evaluation follow as in any run. Without one the run only imitates, and is scored by how often it repeats
# the recorded action in the held-out episodes.

LOGS, COVERAGE, KEPT = "logs", "coverage.json", ".kept.jsonl"
KEEP_BACK = 10  # without a world, hold out every tenth won episode, if there are ten
DEFAULT_SFT_STEPS = 300


@dataclass(frozen=True)
class LogPlan:
    runs: list[SkillRun]
    logs: Logs
    coverage: list[Coverage]
    skipped: dict[str, str]  # skill -> why it gets no module


def add_log_defaults(document: Document, logs: Sequence[Path]) -> Document:
    """Settings with defaults for logs: the world of logs if none is named, and then no RL iterations."""
    sft, schedule = dict(document.get("sft", {})), dict(document.get("schedule", {}))
    if sft.get("from"):
        raise TacitError(f"sft.from = {sft['from']!r} and --from both name logs to imitate; remove one of them.")
    completed = {"world": WORK_NAME, **document}
    length = {} if sft.get("epochs") else {"steps": DEFAULT_SFT_STEPS}
    completed["sft"] = {**length, "tasks": 1_000_000, **sft, "from": str(logs[0])}
    if not open_world(str(completed["world"])).playable:
        completed["schedule"] = {"iterations": 0, **schedule}
    return completed


def plan_from_logs(recipe: Recipe, skills: str, out: Path, paths: Sequence[Path]) -> LogPlan:
    """Check and plan every skill's run, then write the sorted logs to `out`."""
    world, only_families = open_world(recipe.world), recipe.train.family_names
    recipe = replace(recipe, train=replace(recipe.train, families=""))
    context = prepare(recipe).methods[0].context
    tasks = world.tasks_of(recipe.train.split, recipe.train.tasks, recipe.train.seed) if world.playable else []
    family_of = make_family_lookup(world, tasks) if world.playable else family_without_world
    logs, usable, replayer = read_logs(paths, family_of), [], TaskReplayer(world, tasks)
    for logged in logs.episodes:  # a won episode may be unusable, for example if the tracker cannot read it
        if reason := reason_unusable(logged.recording, replayer, context) if logged.recording.success else "":
            logs.unusable.append(f"{logged.location}: {reason}")
        else:
            usable.append(logged)
    replayer.close()
    logs.episodes = usable
    world_of_logs = world if world.playable else replace(world, families=logs.families, skills={})
    coverage = count_coverage(logs, world_of_logs.families)
    if not any(logged.recording.success for logged in logs.episodes):
        first = f" The first unusable line: {logs.unusable[0]}." if logs.unusable else ""
        raise TacitError(f"no won episode to imitate in {', '.join(map(str, logs.files))}.{first}")
    won_by_skill: dict[str, tuple[tuple[str, ...], list[str], list[LoggedEpisode]]] = {}
    skipped: dict[str, str] = {}
    for skill, families in choose_skills(world_of_logs, skills, only_families).items():
        trained = [family for family in families if not only_families or family in only_families]
        if won := [logged for logged in logs.select(trained) if logged.recording.success]:
            won_by_skill[skill] = (families, trained, won)
        else:
            skipped[skill] = f"no won episode of {', '.join(families)}"
    if not won_by_skill:
        raise TacitError(f"no module can be trained: {'; '.join(f'{skill}: {reason}' for skill, reason in skipped.items())}.")
    for skill, (_, _, won) in won_by_skill.items():
        every = 0 if world.playable or len(won) < KEEP_BACK else KEEP_BACK
        held_out = won[every - 1 :: every] if every else []
        imitated = [logged for number, logged in enumerate(won, start=1) if not every or number % every]
        file, text = out / LOGS / f"{skill}.jsonl", to_jsonl(imitated)
        if (out / RUNS / skill / SETTINGS).exists() and file.exists() and file.read_text(encoding="utf-8") != text:
            raise TacitError(
                f"the logs differ from those that {out / RUNS / skill} started with ({file} would change); use the same logs, "
                "or another --out."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
        if held_out:
            write_text(file.with_suffix(KEPT), to_jsonl(held_out))
    counts = [{**vars(counted), "remark": counted.remark} for counted in coverage]
    report = {"files": [str(file) for file in logs.files], "families": counts, "unusable": logs.unusable}
    write_json(out / LOGS / COVERAGE, report)
    runs = []
    for skill, (families, trained, _) in won_by_skill.items():
        train = replace(recipe.train, sft=replace(recipe.train.sft, from_=str(out / LOGS / f"{skill}.jsonl")))
        if world.playable and set(trained) != set(world.families):
            train = replace(train, families=",".join(trained))
        runs.append(SkillRun(skill, families, prepare(replace(recipe, out=out / RUNS / skill, train=train))))
    return LogPlan(runs, logs, coverage, skipped)


def describe_log_training(planned: SkillRun, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The module's `from_logs` entry."""
    file = Path(planned.prepared.recipe.train.sft.from_)
    imitated = list(read_recordings(file, ReadReport()))[: planned.prepared.recipe.train.sft.tasks]
    described = {
        "from": "logs",
        "episodes": len(imitated),
        "turns": sum(len(recording.actions) for recording in imitated),
        "sha256": hash_file(file),
        "practised": checkpoint.stage == "rl",
    }
    if planned.prepared.worlds[0].playable:
        return described
    described["measured"] = "never: there was no world to play in"
    if not (held_out := file.with_suffix(KEPT)).exists():
        return described
    # The share of held-out turns at which the greedy policy repeats the recorded action.
    agent = open_target(str(planned.prepared.recipe.out), {}, checkpoint.path.name)
    sampling = replace(agent.sampling, temperature=0.0, stop=agent.context.format.stop)
    same = turns = 0
    for recording in read_recordings(held_out, ReadReport()):
        task, recorded = task_of_recording(recording, agent.world.name), recording.as_recorded()
        rendered = list(render_turns(agent.context, task, recorded, tokenizer=agent.policy, room=sampling.max_tokens))
        fitting = [turn for turn in rendered if turn.fits]
        completions = agent.policy.sample([Request(turn.tokens, 0) for turn in fitting], sampling) if fitting else []
        parse = agent.context.format.parse
        same += sum(parse(done.text).action == turn.action for done, turn in zip(completions, fitting, strict=True))
        turns += len(rendered)
    return described | {"kept_turns": turns, "same_action": round(same / turns, 4) if turns else 0.0}
