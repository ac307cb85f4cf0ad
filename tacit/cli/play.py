"""`tacit play`: watch a policy or the expert play, or play yourself."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from tacit.cli.terminal import add_checkpoint_flag, add_panel_options, add_shared_options, make_console, peek_method, say
from tacit.config.agents import HUMAN
from tacit.config.flags import Parser
from tacit.config.measuring import episode_at
from tacit.core.actions import ActionFormat
from tacit.core.bounds import Count
from tacit.core.chat import Chat, Message
from tacit.core.progress import format_duration, pluralize, report_elapsed
from tacit.core.protocols import PolicyHooks, Request, Sampling, SamplingPolicy
from tacit.core.types import Completion, HiddenState, Observation, Task, Transition
from tacit.evaluation.behavior import describe_ending
from tacit.modules.agent import open_agent
from tacit.rollout.episodes import rollout
from tacit.rollout.worlds import WorldFailure, WorldPool
from tacit.training.setup import make_worlds

DELAY_S = 0.5  # pause between turns in a terminal
SHOWN_SETTINGS = ("split", "temperature", "top_p", "top_k", "max_steps")


class Quit(BaseException):
    """The user quits. Not an Exception: a rollout would count it as a crash."""


def run(argv: Sequence[str]) -> int:
    arguments, overrides = make_parser(peek_method(argv, "play")).parse(argv)
    console = make_console()
    human = arguments.policy == HUMAN
    overrides = {**overrides, ("evaluation", "tasks"): arguments.task + 1}
    actor = (lambda task: Human(console)) if human else None
    with report_elapsed(partial(say, console), lambda spent: f"loading {arguments.policy}, {format_duration(spent)}"):
        target = open_agent(arguments.policy, overrides, arguments.checkpoint, actor, arguments.base_model, arguments.fallback)
    plan = episode_at(target, arguments.task)
    task, name = plan.task, target.route.name(plan.task)
    who = f"{target.label} ({name})" if name else target.label
    say(console, f"{who} plays {task.id}", style="bold")
    say(console, f"{task.goal}  ({task.family}, at most {pluralize(target.rules.max_steps, 'step')})")
    pause = DELAY_S if console.is_terminal and not human else 0.0
    context, agent = target.route.agent(name)
    watch = PrintingPool(make_worlds(target.world, target.recipe.train), console, pause, context.format)
    policy = RecordingPolicy(agent, watch, console, arguments.prompts)
    try:
        (played,) = rollout([plan], context, watch, policy, target.sampling, target.rules.max_steps)
    except Quit:
        say(console, "stopped.")
        return 0
    finally:
        watch.close()
    turns = pluralize(len(played), "step")
    # Print the world's reason only if it adds something.
    detail = f" ({played.detail})" if played.detail and played.detail != played.stop.value else ""
    if played.success:
        say(console, f"success in {turns}", style="bold green")
    else:
        say(console, f"no success after {turns}: {describe_ending(played.stop.value)}{detail}", style="bold red")
    return 1 if played.stop.crashed else 0


def make_parser(method: str) -> Parser:
    parser = Parser(
        "play",
        "Watch a run, a model or the expert play, or play yourself (--policy human).",
        usage="tacit play --policy WHO [--world NAME] [settings]",
        epilog="For a run, every default is the run's own setting.",
    )
    parser.flag("--policy", None, "run, skill modules, model, `expert`, `reader` (rule agent) or `human`", "WHO", required=True)
    parser.flag("--task", 0, "index of the task on the panel, from 0", bound=Count)
    parser.flag("--prompts", False, "print every prompt, with a bar before each line")
    add_checkpoint_flag(parser)
    add_panel_options(parser, SHOWN_SETTINGS)
    add_shared_options(parser, method, trains=False)
    return parser


class Human:
    """Asks for each action. `?` lists the admissible actions; `q` or end of input quits."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def act(self, observation: Observation) -> str:
        while True:
            if self._console.is_terminal:
                self._console.print("your action (? lists, q quits): ", end="", markup=False)
            line = sys.stdin.readline()
            answer = line.strip()
            if not line or answer == "q":
                raise Quit
            if answer == "?":
                say(self._console, "\n".join(observation.actions) or "this world does not list its actions.")
            elif answer:
                return answer


class PrintingPool(WorldPool):
    """A world pool with one slot that prints observations and actions."""

    def __init__(self, worlds: WorldPool, console: Console, delay: float, format: ActionFormat) -> None:
        self._worlds, self._console, self._delay, self._format = worlds, console, delay, format
        self._turn, self.wrote = 0, ""

    def reset(self, tasks: Sequence[Task]) -> list[Observation | WorldFailure]:
        answers = self._worlds.reset(tasks)
        for answer in answers:
            if isinstance(answer, Observation):
                self._show(answer)
        return answers

    def submit(self, actions: Sequence[tuple[int, str]]) -> None:
        self._turn += 1
        (_, action), *_ = actions
        if self.wrote.strip() not in ("", action):
            self._console.print(Text(self.wrote.strip(), style="dim"), soft_wrap=True)
        note = ""
        if self.wrote and not self._format.parse(self.wrote).valid:
            ending = self.wrote.lower().endswith(action.lower())
            note = "  [no action found: using the end of the answer]" if ending else "  [not in the full format]"
        line = Text.assemble((f"{self._turn:3d} > ", "dim"), (action, "bold cyan"), (note, "yellow"))
        self._console.print(line, soft_wrap=True)
        self._worlds.submit(actions)

    def collect(self, limit_s: float | None = None) -> dict[int, Transition | WorldFailure]:
        answers = self._worlds.collect(limit_s)
        time.sleep(self._delay if answers else 0.0)
        for answer in answers.values():
            if isinstance(answer, Transition):
                self._show(answer.observation, "" if answer.effective else "refused")
        return answers

    def close(self) -> None:
        self._worlds.close()

    def _show(self, observation: Observation, remark: str = "") -> None:
        # Many worlds explain a refused action themselves.
        note = f"  [{remark}]" if remark and remark not in observation.text else ""
        self._console.print(Text.assemble(observation.text, (note, "yellow")), soft_wrap=True)


class RecordingPolicy(PolicyHooks):
    """Wraps a policy and keeps its completions for printing."""

    def __init__(self, policy: SamplingPolicy, watch: PrintingPool, console: Console, prompts: bool) -> None:
        self._policy, self._watch, self._console, self._prompts = policy, watch, console, prompts
        self.encode_completion, self.decode, self.context_limit = policy.encode_completion, policy.decode, policy.context_limit

    def encode_prompt(self, text: str):
        if self._prompts:
            self._show_prompt(text)
        return self._policy.encode_prompt(text)

    def _show_prompt(self, text: str) -> None:
        """With a bar before each line, so that prompts differ from the world's texts without colors, too."""
        lines = textwrap.indent(text, "| ", lambda line: True)
        self._console.print(Text(lines, style="dim green"), soft_wrap=True)

    def encode_chat(self, chat: Chat):
        if self._prompts:
            for message in chat.messages:
                text = message.call.text() if message.call else message.content
                self._show_prompt(f"{message.role}: {text}")
        return self._policy.encode_chat(chat)  # type: ignore[attr-defined]

    def encode_answer(self, chat: Chat, answer: Message):
        return self._policy.encode_answer(chat, answer)  # type: ignore[attr-defined]

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        with report_elapsed(partial(say, self._console), lambda spent: f"writing its answer, {format_duration(spent)}"):
            completions = self._policy.sample(requests, sampling, hidden)
        self._watch.wrote = completions[0].text if completions else ""
        return completions
