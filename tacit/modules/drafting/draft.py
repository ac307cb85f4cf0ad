"""Have a model draft a tracker or rewards: build the prompt, show the draft, get approval, check it, ask again with failures.

No draft runs before `approve` returned True for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.companions.answers import AnswerCache, answer_key, ask_all
from tacit.core.chat import Conversation, split_thought
from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling, SamplingPolicy
from tacit.core.types import Prompt
from tacit.modules.drafting.checks import CheckReport, Draft, Failure, check_draft
from tacit.modules.drafting.sandbox import check_source
from tacit.modules.drafting.tracker import Fields
from tacit.rollout.encoding import encode_prompt, fit_prompt
from tacit.runs.files import write_json, write_text
from tacit.training.imitation import Recording

# Prompts. The paper has a strong model draft reward rules once, from the task and the state block, and then uses them as fixed
# rules (§7.5): progress when a field comes closer to done; errors for invalid, repeated, premature, misdirected or undone
# actions; each computed from the state before, the action, the observation and the state after. We ask for the same as runnable
# functions, and also for the tracker that keeps the state.

MAX_OBSERVATION = 1200  # characters of an observation in the prompt
MAX_ACTIONS = 60
_CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

_ROLE = """You write a small Python program that follows an agent at work. It keeps a state that says how far the agent has
come, and a fixed set of rules that reward progress and penalise mistakes. The agent will see the state as a few lines of text
before every action. The program is run as it is, thousands of times: no model is asked then."""

_TRACKER_RULES = """BOUND = number
    The most characters that render ever returns, at most 800.
start(goal, observation) -> dict
    The state at the beginning, from the text of the goal and the first observation. Plain JSON: text keys, lists, numbers.
update(state, action, observation) -> dict
    The state after an action and what was then seen. Never raises, whatever the text.
render(state) -> str
    The state block: `field: value`, one on a line, with the subgoal that comes next. However long the episode, no longer than
    BOUND: lists are cut to their latest entries.
done(state) -> bool
    True exactly when the task is achieved: never earlier, never in an episode that was lost. It is read off the texts; nothing
    else tells you. Do not count turns, and do not recognise single episodes: it is checked against many that you do not see."""

_REWARD_RULES = """
REWARDS = {"progress": {rule: amount}, "error": {rule: amount}}
    Every amount is positive; errors are taken off. Progress: fields of the state that come nearer to done, above all a rule for
    each step from one subgoal to the next. Errors: actions that are refused or change nothing, repeating what did not help,
    doing a later step too early, going to the wrong place, undoing what was achieved.
CLAIMS = {rule: total}
    For at least one rule of progress: what it adds up to in EVERY won episode, and never more in any. So reward a subgoal once
    only, also where the agent falls back and does it again.
events(before, action, observation, after) -> list of rule names
    The rules that came up on this step, from the state before the action, the action, what was then seen, and the state after.
    Nothing but these may be used. A rule may stand in the list twice."""

_OWN_STATES = """The tracker is there and stays as it is; its state block is shown with every turn. A state is a dict with the
lines of the block as text, by their names: {names}. A line that is not in the block is not in the dict (use .get), and "block"
is all of it. before["came_up"] is a dict with how often each of your rules has come up earlier in the episode: use it to reward
a subgoal once."""

_LIMITS = """It may import from collections, copy, dataclasses, enum, functools, itertools, json, math, re, string and typing.
It opens no file, asks nobody, uses no random numbers and no names that begin with an underscore, and has none of eval, exec,
open, getattr, type. Calls must be quick. The same texts must always give the same result."""


def build_prompt(
    family: str,
    episodes: Sequence[Recording],
    actions: Sequence[str],
    draft: str = "",
    failures: str = "",
    blocks: Mapping[Recording, Sequence[Fields]] | None = None,
) -> Prompt:
    """Ask for a tracker with rewards, or for rewards over the state `blocks` of the world's own tracker, which are shown with
    the episodes. `draft` is the last draft, and `failures` are its failures."""
    state_format, parts = "", f"\n{_TRACKER_RULES}{_REWARD_RULES}"
    if blocks is not None:
        parts = _REWARD_RULES
        names = dict.fromkeys(name for by_turn in blocks.values() for fields in by_turn for name in fields if name != "block")
        state_format = f"{_OWN_STATES.format(names=', '.join(names))}\n"
    retry = (
        f"\n\nYour last draft:\n```python\n{draft}\n```\nChecked against all episodes, it failed:\n{failures}\nWrite it anew."
        if draft
        else ""
    )
    instructions = f"{state_format}Write one Python file with exactly this in it:\n{parts}\n\n{_LIMITS}{retry}"
    return Prompt(
        task=f"{_ROLE}\n\nThe kind of work: {family}\nActions that were done in it: {'; '.join(actions[:MAX_ACTIONS])}",
        history=tuple(_render_episode(n, e, (blocks or {}).get(e, ())) for n, e in enumerate(episodes, start=1)),
        now="",
        request=f"{instructions}\n\nAnswer with the file in one ```python block.",
        separator="\n\n",
    )


def _render_episode(number: int, recording: Recording, blocks: Sequence[Fields]) -> str:
    lines = [f"Episode {number}. Goal: {recording.goal}"]
    for turn, (saw, action) in enumerate(zip(recording.seen, recording.actions, strict=False), start=1):
        state = f"[{turn}] state block:\n{blocks[turn - 1]['block']}\n" if blocks else ""
        lines.append(f"[{turn}] saw: {_cut(saw)}\n{state}[{turn}] did: {action}")
    if blocks:
        lines.append(f"At the end the state block is:\n{blocks[-1]['block']}")
    if len(recording.seen) > len(recording.actions):
        lines.append(f"At the end it saw: {_cut(recording.seen[-1])}")
    lines.append("It was won." if recording.success else "It was lost.")
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_OBSERVATION else f"{text[:MAX_OBSERVATION]} …"


def list_action_kinds(episodes: Sequence[Recording]) -> list[str]:
    """One example per kind of action (first word and number of words), most common first."""
    kinds: dict[tuple[str, int], list[str]] = {}
    for action in (action for episode in episodes for action in episode.actions):
        words = action.split()
        if words:
            kinds.setdefault((words[0], len(words)), []).append(action)
    return [examples[0] for examples in sorted(kinds.values(), key=len, reverse=True)]


def choose_examples(episodes: Sequence[Recording], count: int) -> list[Recording]:
    """The shortest episodes, different goals first; up to a third are failures."""
    ordered = sorted(episodes, key=lambda episode: sum(map(len, episode.seen)))
    first = {(episode.success, episode.goal): episode for episode in reversed(ordered)}  # of each goal
    ordered = [e for repeated in (False, True) for e in ordered if (first[e.success, e.goal] is not e) == repeated]
    lost = [e for e in ordered if not e.success][: count // 3]
    return [*[e for e in ordered if e.success][: count - len(lost)], *lost]


def extract_code(answer: str) -> str:
    """The longest code block of an answer, or all of it if it has none."""
    text = split_thought(answer)[1]
    blocks = _CODE.findall(text)
    return (max(blocks, key=len) if blocks else text).strip() + "\n"


MAX_FAILURES = 12  # failures in the next prompt


@dataclass(frozen=True)
class DraftResult:
    text: str
    report: CheckReport | None  # None if it was not approved to run


def draft_until_valid(
    ask: Callable[[str, str, int], str],
    attempts: int,
    episodes: Sequence[Recording],
    show: Callable[[str, int], None],
    approve: Callable[[], bool],
    report: Callable[[CheckReport], None],
    blocks: Mapping[Recording, Sequence[Fields]] | None = None,
) -> DraftResult:
    """Ask for drafts until one passes, one is not approved, or `attempts` are used up. `ask(last_draft, failures, attempt)`
    returns a draft. `blocks` are the fields of the world's own tracker."""
    text = failures = ""
    for attempt in range(attempts):
        text = ask(text, failures, attempt)
        show(text, attempt)
        if reasons := check_source(text):
            check = CheckReport(failures=[Failure("reads", reason) for reason in reasons], last_check="reads")
        elif not approve():
            return DraftResult(text, None)
        else:
            check = check_draft(Draft(text, blocks=blocks), episodes)
        report(check)
        if check.passed:
            break
        failures = "\n".join(f"- {failure}" for failure in check.failures[:MAX_FAILURES])
    return DraftResult(text, check)


class Drafter:
    """Asks a model for drafts. Answers are cached on disk."""

    def __init__(self, policy: SamplingPolicy, cache_dir: Path, max_tokens: int, temperature: float) -> None:
        self._policy, self._answers = policy, AnswerCache(cache_dir)
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)

    def write(self, prompt: Prompt, attempt: int) -> str:
        policy, max_tokens = self._policy, self._sampling.max_tokens
        model = policy.digest()  # type: ignore[attr-defined]
        key = answer_key(model, self._sampling.temperature, max_tokens, prompt.text, attempt)
        if key not in self._answers:
            prompt, tokens, fits = fit_prompt(prompt, policy, max_tokens)
            if not fits:
                raise TacitError(
                    f"the prompt has {len(tokens)} tokens; with {max_tokens} more for the answer it exceeds the model's "
                    f"{policy.context_limit}. Show fewer episodes (--shown) or lower --max-tokens."
                )
            with suppress(TacitError):  # without a chat template, use plain text
                tokens = encode_prompt(Prompt(task="", now=prompt.text, conversation=Conversation()), policy)
            ask_all(policy, self._sampling, {key: Request(tokens, attempt)}, self._answers)
            if key not in self._answers:
                raise TacitError(f"the model returned no draft: {['no answer', *policy.broken][-1]}")
        return extract_code(self._answers[key].text)


def save_draft(out: Path, name: str, kind: str, drafted: DraftResult, world: str = "", block: str = "") -> list[Path]:
    """Write a draft that passed and a file that makes a world of it, or a failed draft with the suffix `.refused`. Return the
    paths. `kind` is `tracker`, or `rewards` for the world's own `block`."""
    out.mkdir(parents=True, exist_ok=True)
    checks = drafted.report
    report = out / f"{name}_{kind}_checks.json"
    if checks is not None:
        write_json(report, checks.to_json())
    if checks is None or not checks.passed:
        file = out / f"{name}_{kind}.py.refused"
        write_text(file, drafted.text)
        return [file, *([report] if checks else [])]
    file, work = out / f"{name}_{kind}.py", out / f"{name}_work.py"
    write_text(file, drafted.text)
    arguments = {"rewards": file.name, "world": world, "block": block} if kind == "rewards" else {"world": world}
    first = repr(file.name if kind == "tracker" else "")
    parameters = ", ".join([first, "beside=__file__", *(f"{name}={value!r}" for name, value in arguments.items() if value)])
    write_text(
        work,
        f'"""Work with a drafted tracker: --world {work.name}:ENVIRONMENT."""\n\n'
        f"from tacit.modules.work import work_of\n\nENVIRONMENT = work_of({parameters})\n",
    )
    return [file, work, report]
