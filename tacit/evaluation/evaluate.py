"""Play a panel with an agent and score it. The evaluation is on disk while it runs: one line per episode, so that it can be
resumed. Turns of unfinished episodes are in a second file.

The first line records panel, sampling, prompt settings, condition, model fingerprint, dtype and code version. The file name is
a hash of all but the code, so only the same measurement continues a file. A file of other code, or an unreadable one, is
renamed and never mixed with new episodes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tacit.core.errors import TacitError
from tacit.core.files import refuse_links
from tacit.core.method import Alike, Context
from tacit.core.progress import pluralize
from tacit.core.protocols import ChatTokenizer, PolicyHooks, Request, Sampling, SamplingPolicy, Scheduler
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Completion, Group, HiddenState, Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.panels import PANEL_SEED, Panel, Rules
from tacit.evaluation.scores import PanelScore, score_panel
from tacit.rollout.encoding import open_scheduler
from tacit.rollout.episodes import NO_OBSERVER, EpisodePlan, RolloutObserver, rollout, rollout_groups
from tacit.rollout.worlds import WorldPool
from tacit.runs.files import explain_disk_errors, read_objects
from tacit.runs.trajectories import trajectory_from_record, trajectory_record

# Completions of unfinished episodes. A resumed evaluation replays an episode from its start; its requests have the same seeds
# and prompts, so their completions are read from the file. The file is deleted when the panel is done.


MAX_TOKENS = 1 << 20  # of a completion


class TurnCache:
    """The file: one line per completion, keyed by request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.completions: dict[str, Completion] = {}
        self.used = 0  # completions read from the file

    def read(self) -> None:
        """Read the file. A truncated last line is ignored."""
        self.completions = {}
        for record in read_objects(self._path):
            try:
                # Only the number of tokens and their summed log-probability are stored. Repeated values take no memory: the
                # file is untrusted, and each short line may count a million tokens.
                count, text, finish = record["tokens"], record["wrote"], record["finish"]
                if count > MAX_TOKENS or not isinstance(text, str) or finish not in ("stop", "length"):
                    continue
                tokens = np.broadcast_to(np.int64(0), count)
                logprobs = np.broadcast_to(np.float32(record["logprob"] / max(1, count)), count)
                read = int(record.get("read", 0))
                self.completions[record["request"]] = Completion(tokens, logprobs, text, finish, read=read)
            except (ValueError, KeyError, TypeError, OverflowError):
                continue

    def find(self, request: Request) -> Completion | None:
        completion = self.completions.get(_request_key(request))
        self.used += completion is not None
        return completion

    def add(self, answers: Mapping[str, Completion]) -> None:
        text = ""
        for name, c in answers.items():
            if c.finish != "unusable":
                record = {"request": name, "wrote": c.text, "tokens": len(c.tokens), "logprob": float(c.logprobs.sum())}
                record |= {"finish": c.finish, **({"read": c.read} if c.read else {})}
                text += f"\n{json.dumps(record, ensure_ascii=False)}"  # newline first: the last write may have been truncated
        if text:
            with explain_disk_errors(self._path), open(self._path, "a", encoding="utf-8", opener=refuse_links) as file:
                file.write(text)

    def drop(self) -> None:
        self.completions = {}
        self._path.unlink(missing_ok=True)


class CachedPolicy(PolicyHooks):
    """A policy that takes stored completions from the file and samples the others."""

    def __init__(self, policy: SamplingPolicy, turns: TurnCache) -> None:
        self._policy, self._turns = policy, turns
        self.context_limit = policy.context_limit
        self.encode_prompt, self.encode_completion, self.decode = policy.encode_prompt, policy.encode_completion, policy.decode
        self.sample = policy.sample
        if isinstance(policy, ChatTokenizer):
            self.encode_chat, self.encode_answer = policy.encode_chat, policy.encode_answer

    @property
    def repeatable(self) -> bool:
        return self._policy.repeatable

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._policy.encode_prompts(texts)

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> CachedScheduler:
        return CachedScheduler(open_scheduler(self._policy, sampling, hidden), self._turns)


class CachedScheduler:
    def __init__(self, scheduler: Scheduler, turns: TurnCache) -> None:
        self._scheduler, self._turns, self._submitted = scheduler, turns, 0
        self._stored: list[tuple[int, Completion]] = []
        self._pending: dict[int, tuple[int, str]] = {}  # the scheduler's request id -> (our id, key of the request)

    def submit(self, request: Request) -> int:
        request_id, self._submitted = self._submitted, self._submitted + 1
        if (stored := self._turns.find(request)) is not None:
            self._stored.append((request_id, stored))
        else:
            self._pending[self._scheduler.submit(request)] = (request_id, _request_key(request))
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        if self._stored:
            stored, self._stored = self._stored, []
            return stored
        finished = [(*self._pending.pop(request_id), completion) for request_id, completion in self._scheduler.wait()]
        self._turns.add({name: completion for _, name, completion in finished})
        return [(request_id, completion) for request_id, _, completion in finished]

    def close(self) -> None:
        self._scheduler.close()


def _request_key(request: Request) -> str:
    """The seed identifies episode and turn; the prompt checks that the turn is the same."""
    return f"{request.seed:x}-{hashlib.sha256(request.prompt.tobytes()).hexdigest()[:16]}"


FORMAT = 1  # file format; increase it if older lines would be misread

EpisodeKey = tuple[int, int]  # (repeat, index in the panel)


@dataclass(frozen=True)
class Measurement:
    """Everything an outcome depends on."""

    panel: str
    panel_version: str
    panel_hash: str
    model: str  # label of the agent
    fingerprint: str  # hash of the weights, or a name
    sampling: Mapping[str, Any]
    max_steps: int
    seed: int
    reads: Mapping[str, Any] = field(default_factory=dict)  # prompt settings: the method's name and settings
    numbers: str = ""  # dtype and device, such as `float32 on cpu`; empty for endpoints and experts
    code: str = ""  # tacit's version and commit; with a world of the user's, also its file and hash
    condition: Mapping[str, str] = field(default_factory=lambda: {"name": PLAIN.name})
    """the condition of the episodes (`Rules.describe_condition`)"""

    @classmethod
    def of(
        cls,
        panel: Panel,
        rules: Rules,
        model: str,
        fingerprint: str,
        reads: Mapping[str, Any] | None = None,
        numbers: str = "",
        code: str = "",
    ) -> Measurement:
        sampling = json.loads(json.dumps(asdict(rules.sampling)))
        return cls(
            panel.name, panel.version, panel.hash, model, fingerprint, sampling, rules.max_steps, rules.seed, dict(reads or {}),
            numbers, code, rules.describe_condition(panel.tasks),
        )  # fmt: skip

    @property
    def settings_hash(self) -> str:
        """Hash of everything but the panel, the label and the code. Empty `numbers` and the plain condition are left out."""
        left_out = {"panel", "panel_version", "panel_hash", "model", "code", *(() if self.numbers else ("numbers",))}
        left_out |= {"condition"} if self.condition == {"name": PLAIN.name} else set()
        included = {k: v for k, v in asdict(self).items() if k not in left_out}
        return hashlib.sha256(json.dumps(included, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def file_name(self) -> str:
        return f"{self.panel_hash}-{self.settings_hash}.jsonl"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Journal:
    """The file of one measurement. Two processes may write it at once: duplicate lines are identical."""

    def __init__(self, directory: Path, measurement: Measurement) -> None:
        self.path = directory / measurement.file_name
        self.measurement = measurement
        self.turns = TurnCache(self.path.with_suffix(".turns"))
        self.notes: list[str] = []  # notes for the user about an existing file
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TacitError(f"cannot make the directory {directory}: {error.strerror}. Name another with --out.") from error

    def read(self, panel: Panel, repeats: int) -> dict[EpisodeKey, Trajectory]:
        """The finished episodes; prepares the file for more."""
        played: dict[EpisodeKey, Trajectory] = {}
        lines = self._lines()
        if lines is None:
            self.turns.drop()
            self._append([{"format": FORMAT, **self.measurement.to_json()}])
            return played
        is_intact = True
        for line in lines[1:]:
            try:
                record = json.loads(line)
                key, task = (record["repeat"], record["place"]), panel.tasks[record["place"]]
                if record["task"] == task.id and key[0] < repeats:
                    played[key] = trajectory_from_record(record, task)
            except (ValueError, KeyError, IndexError, TypeError):
                is_intact = False  # a truncated line of a killed process: its episode is played again
        if not is_intact or not lines[-1].endswith("\n"):
            self._append([], newline=not lines[-1].endswith("\n"))
        self.turns.read()
        if played:
            self.notes.append(f"already played: {pluralize(len(played), 'episode')}, in {self.path} (--fresh plays them again)")
        return played

    def write(self, episodes: Sequence[tuple[EpisodeKey, Trajectory]]) -> None:
        """Append episodes in one write. Scores keep all digits."""
        self._append(
            {"repeat": repeat, "place": i, **trajectory_record(t), "score": t.score} for (repeat, i), t in episodes
        )  # fmt: skip

    def finish(self, lost: int) -> None:
        """Finish the panel. The turns of `lost` episodes, which broke off, are kept for the next attempt."""
        if self.turns.used:
            self.notes.append(f"reused from unfinished episodes: {pluralize(self.turns.used, 'turn')}")
        if lost:
            self.notes.append(
                f"not saved, because they broke off: {pluralize(lost, 'episode')}; the same command plays them again"
            )
        else:
            self.turns.drop()

    def reset_files(self) -> None:
        if self.path.exists():
            self.notes.append(f"earlier episodes were moved to {self._move_aside('earlier')}")

    def _lines(self) -> list[str] | None:
        """The lines of the existing file if this measurement may continue it, else None; an unusable file is moved aside."""
        if not self.path.exists():
            return None
        try:
            with self.path.open(encoding="utf-8", newline="\n") as file:  # completions may contain other line separators
                lines = list(file)
            head = json.loads(lines[0])
            file_format, code = head["format"], head["code"]
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            self.notes.append(f"{self.path} could not be read and was moved to {self._move_aside('damaged')}")
            return None
        if file_format != FORMAT:
            moved = self._move_aside(f"format{file_format}")
            self.notes.append(
                f"earlier episodes are in format {file_format}, not {FORMAT}, and are played again; the old ones are in {moved}"
            )
            return None
        if code != self.measurement.code:
            moved = self._move_aside(code)
            self.notes.append(
                f"earlier episodes were played by tacit {code}, this is {self.measurement.code}; they are played again, and "
                f"the old ones are in {moved}"
            )
            return None
        return lines

    def _move_aside(self, reason: str) -> Path:
        word = re.sub(r"[^\w.+-]+", "-", reason) or "earlier"
        names = (f".{word}{f'-{number}' if number > 1 else ''}.jsonl" for number in itertools.count(1))
        moved = next(path for name in names if not (path := self.path.with_suffix(name)).exists())
        self.path.rename(moved)
        return moved

    def _append(self, records: Any, newline: bool = False) -> None:
        text = ("\n" if newline else "") + "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with explain_disk_errors(self.path), open(self.path, "a", encoding="utf-8", opener=refuse_links) as file:
            file.write(text)


# Play a panel with an agent and score it.

BATCH = 256  # concurrent episodes


class Route(Protocol):
    """Assigns an agent to each task."""

    def name(self, task: Task) -> str:
        """The name of the task's agent."""
        ...

    def agent(self, name: str) -> tuple[Context, SamplingPolicy]:
        """Its prompt and policy. The previously requested agent may be unloaded."""
        ...


@dataclass(frozen=True)
class SingleAgent:
    context: Context
    policy: SamplingPolicy

    def name(self, task: Task) -> str:
        return ""

    def agent(self, name: str) -> tuple[Context, SamplingPolicy]:
        return self.context, self.policy


def evaluate(
    panel: Panel,
    rules: Rules,
    worlds: WorldPool,
    context: Context,
    policy: SamplingPolicy,
    observer: RolloutObserver = NO_OBSERVER,
) -> tuple[PanelScore, list[Trajectory]]:
    played = play_panel(panel, rules, worlds, SingleAgent(context, policy), observer=observer)
    return score_panel(panel, played, rules), played


def play_panel(
    panel: Panel,
    rules: Rules,
    worlds: WorldPool,
    route: Route,
    *,
    batch: int = BATCH,
    journal: Journal | None = None,
    on_resume: Callable[[int], None] | None = None,
    observer: RolloutObserver = NO_OBSERVER,
    settle: Callable[[Trajectory], Trajectory] | None = None,
) -> list[Trajectory]:
    """Play the panel's episodes; returns them in order, repeat after repeat.

    The seed of an episode depends on its index, its repeat and the rules' seed, so batching changes nothing and two conditions
    see the same randomness. Tasks are grouped by agent (`route`). Episodes in the journal are not played again; `on_resume`
    receives their number. Finished episodes and single turns are written to the journal, except those with a crash or an
    unusable completion, which are played again next time. `settle` makes the final change to an episode.
    """
    keys = [(repeat, i) for repeat in range(rules.repeats) for i in range(len(panel.tasks))]
    played = journal.read(panel, rules.repeats) if journal else {}
    missing = [key for key in keys if key not in played]
    if on_resume:
        on_resume(len(played))
    by_agent: dict[str, list[EpisodeKey]] = {}
    for key in missing:
        by_agent.setdefault(route.name(panel.tasks[key[1]]), []).append(key)
    chunks = [(agent, keys[i : i + batch]) for agent, keys in by_agent.items() for i in range(0, len(keys), batch)]
    for agent, chunk in chunks:
        context, policy = route.agent(agent)

        def store(index: int, trajectory: Trajectory, chunk: Sequence[EpisodeKey] = chunk) -> Trajectory:
            played[chunk[index]] = settled = settle(trajectory) if settle else trajectory
            if journal and not is_lost(settled):
                journal.write([(chunk[index], settled)])
            return settled

        plans = [
            EpisodePlan(panel.tasks[i], derive(PANEL_SEED, rules.seed, i, repeat), rules.condition_of(panel.tasks[i]))
            for repeat, i in chunk
        ]
        cached, episode_store = CachedPolicy(policy, journal.turns) if journal else policy, _EpisodeStore(observer, store)
        rollout(plans, context, worlds, cached, rules.sampling, rules.max_steps, observer=episode_store)
    if journal:
        journal.finish(lost=sum(map(is_lost, played.values())))
    return [played[key] for key in keys]


def is_lost(trajectory: Trajectory) -> bool:
    """Whether the world crashed or a completion was unusable, so that the episode says nothing about the policy."""
    return trajectory.stop.crashed or trajectory.unusable > 0


class _EpisodeStore(RolloutObserver):
    """Stores each finished episode under its (repeat, index)."""

    def __init__(self, observer: RolloutObserver, store: Callable[[int, Trajectory], Trajectory]) -> None:
        self._observer, self._store = observer, store
        self.on_start, self.on_turn = observer.on_start, observer.on_turn  # type: ignore[method-assign]

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        self._observer.on_episode_end(index, self._store(index, trajectory))


# Rollouts as in training, to measure a policy: tasks, prompts, sampling and groups.


@dataclass(frozen=True)
class RolloutSetup:
    world: Environment
    worlds: WorldPool
    context: Context
    policy: Any  # samples, scores and returns hidden states
    tasks: Sequence[Task]  # the training tasks
    sampling: Sampling  # as in training
    max_steps: int
    group_size: int
    seed: int
    iteration: int  # the next training iteration, from 1
    collect: Callable[[int], Sequence[Group]]  # the groups of an iteration as in training, without crashed episodes

    def play(self, tasks: Sequence[Task], members: int, seed: int) -> list[Group]:
        """Groups of the given tasks, rolled out with the same settings."""
        played = rollout_groups(
            tasks, members, seed, Alike(), self.context, self.worlds, self.policy, self.sampling, self.max_steps
        )
        return [group for group in (g.without_crashes() for g in played) if len(group)]
