"""Agents to evaluate or watch: a run's checkpoint, a model, the world's expert or rule agent, an endpoint, a person. All use
the same rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tacit.config.checks import AGENTS, EXPERT, RULE_AGENT, check_sampling, open_world
from tacit.config.recipe import Document, Overrides, Recipe, absolute_name, override
from tacit.config.resources import check_layers, load_policy
from tacit.config.values import to_data
from tacit.core.actions import BARE, ActionFormat
from tacit.core.bounds import check_bounds
from tacit.core.chat import Chat
from tacit.core.errors import TacitError
from tacit.core.method import Context, PromptReader
from tacit.core.protocols import Policy, Request, Sampling, SamplingPolicy
from tacit.core.types import ActionStyle, Completion, Condition, HiddenState, Observation, Prompt, Task, Trajectory, Transition
from tacit.core.world import Environment, Expert, as_action
from tacit.engines.endpoint import ByteTokens, ChatClient, ChatPolicy
from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES
from tacit.evaluation.evaluate import Route, SingleAgent
from tacit.evaluation.panels import Rules
from tacit.methods import get_method
from tacit.rollout.encoding import check_chat_support
from tacit.rollout.worlds import TimedExpert
from tacit.runs.directory import (
    SETTINGS,
    Checkpoint,
    describe_directory,
    find_runs,
    open_checkpoints,
    read_settings,
)
from tacit.training.settings import TrainSettings
from tacit.training.setup import WorldSetup, completion_limit, evaluation_sampling


@dataclass(frozen=True)
class ActingContext(Context):
    """A context for agents that act on observations: the prompt *is* the action, and `Echo` repeats it. So experts and
    people are played and scored by the same code as a policy."""

    make: Callable[[Task], Expert]
    style: ActionStyle = "bare"
    format: ActionFormat = BARE

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        actor = self.make(task)
        if not isinstance(actor, Expert):
            raise TacitError(
                f"{self.make!r} returned {actor!r} for a task, which cannot play: pass a class, or a function of a task, "
                "whose object has `act(observation)`."
            )
        return _ActingReader(actor)


class _ActingReader(PromptReader):
    reading = "the agent's act"

    def __init__(self, actor: Expert) -> None:
        self._actor = actor

    def read(self, observation: Observation) -> Prompt:
        return Prompt(task="", now=as_action(self._actor.act(observation), observation))

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        return {}


class Echo(ByteTokens):
    """Completes each prompt with itself."""

    def digest(self) -> str:
        return EXPERT

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        nothing = np.zeros(0, np.int64)
        return [Completion(nothing, np.zeros(0, np.float32), self.decode(r.prompt), "stop") for r in requests]


class RulePolicy(ByteTokens):
    """Completes each prompt with `rule(prompt)`. The prompt of a conversation is the text of its messages."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule

    def digest(self) -> str:
        return RULE_AGENT

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.encode_prompt("\n".join(message.content for message in chat.messages if message.content))

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        answers = [self._rule(self.decode(request.prompt)) for request in requests]
        tokens = [self.encode_completion(answer) for answer in answers]
        return [Completion(t, np.zeros(len(t), np.float32), a, "stop") for t, a in zip(tokens, answers, strict=True)]


def expert_context(world: Environment, train: TrainSettings) -> ActingContext:
    """The context in which the world's expert acts: the one of `sft.expert`, by default the first."""
    return ActingContext(partial(TimedExpert, world.expert(train.sft.expert or None), train.world_timeout_s))


def as_policy(name: str, setup: WorldSetup) -> tuple[Policy, WorldSetup]:
    """(policy, setup) of the expert or the rule agent, for evaluation only."""
    if name == EXPERT:
        context = expert_context(setup.world, setup.settings)
        return cast(Policy, Echo()), replace(setup, method=replace(setup.method, context=context))
    assert setup.world.reader is not None, "refused before"
    return cast(Policy, RulePolicy(setup.world.reader)), setup


HUMAN = "human"
RULE_AGENT_METHOD = "constant_context"
RULE_AGENT_DEFAULTS: Document = {"method": RULE_AGENT_METHOD, "prompt": {"wording": "terse"}}  # its default prompt
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Target:
    label: str
    recipe: Recipe
    world: Environment
    context: Context
    policy: SamplingPolicy
    sampling: Sampling
    seed: int  # of the evaluation episodes
    run: Path | None = None
    checkpoint: Checkpoint | None = None
    identity: str = ""  # name, if there are no weights to hash
    settle: Callable[[Trajectory], Trajectory] | None = None  # final change to an episode before it is saved
    several: Route | None = None  # for several skill modules: the agent of each task, instead of `policy` and `context`

    @property
    def route(self) -> Route:
        return self.several or SingleAgent(self.context, self.policy)

    @property
    def rules(self) -> Rules:
        chosen = self.recipe.train.evaluation
        return Rules(self.sampling, chosen.max_steps or self.world.max_steps, self.seed, chosen.repeats)

    @property
    def fingerprint(self) -> str:
        """Hash of the weights; for experts and endpoints, the name."""
        return self.identity or cast(Policy, self.policy).digest()

    @property
    def reads(self) -> Document:
        """The settings that decide the prompt; empty for an expert."""
        if isinstance(self.context, ActingContext):
            return {}
        own = to_data(self.recipe.settings)
        prompt = own.pop("prompt", {})
        return {"method": self.recipe.method, **prompt, **{name: value for name, value in own.items() if name != "schedule"}}


def open_target(
    name: str,
    overrides: Overrides,
    checkpoint: str = "",
    actor: Callable[[Task], Expert] | None = None,
    layers: Sequence[int] = (),
) -> Target:
    """`name` is a run directory, a checkpoint, a model, `expert`, `reader`, or the name of `actor`. `layers`: layers that the
    model must have. Settings are checked before anything is loaded."""
    overrides, path = dict(overrides), Path(name).expanduser()
    if actor is not None or name in AGENTS:
        return _open_agent(name, overrides, actor)
    if (path / SETTINGS).exists():
        return _open_run(path, overrides, checkpoint, layers)
    if path.parent.name == "checkpoints" and (path.parent.parent / SETTINGS).exists():
        return _open_run(path.parent.parent, overrides, checkpoint or path.name, layers)
    if checkpoint:
        raise TacitError(f"--checkpoint {checkpoint} is for runs, and {name!r} is not one: it has no {SETTINGS}.")
    _needs_world(name, overrides, place=True)
    recipe = Recipe.from_json(override({"model": name}, overrides))
    return _open(name, recipe, recipe.train.seed, layers=layers)


def open_loaded(policy: SamplingPolicy, overrides: Overrides, like: str = "") -> Target:
    """The target of a policy that is already loaded. Its prompt comes from these settings, or from the run `like`."""
    if like:
        recipe, seed, trained_in = _run_recipe(Path(like).expanduser(), dict(overrides))
        return _open(f"a policy as {like}", recipe, seed, texts=trained_in, policy=policy)
    _needs_world("a policy", overrides)
    recipe = Recipe.from_json(override({}, overrides))
    return _open("a policy", recipe, recipe.train.seed, policy=policy)


def open_endpoint(
    overrides: Overrides, url: str, model: str, key_variable: str, concurrency: int = 16, timeout_s: float = 120.0
) -> Target:
    """A model behind an OpenAI-compatible API; it reads the method's prompts as single messages."""
    client = ChatClient(url, model, key_variable, timeout_s)
    _needs_world(model, overrides)
    recipe = Recipe.from_json(override({"model": model}, overrides))
    label, policy = f"{model} at {client.url}", ChatPolicy(client, concurrency)
    return replace(_open(label, recipe, recipe.train.seed, policy=policy), identity=label, settle=policy.settle)


def _run_recipe(path: Path, overrides: dict[tuple[str, ...], Any]) -> tuple[Recipe, int, tuple[Environment, ...]]:
    """(settings of the run with overrides, seed of the episodes, worlds it was trained in)"""
    # Only the seed of the episodes may change; the run's seed made its initial weights.
    seed = overrides.pop(("seed",), None)
    world = overrides.pop(("world",), None)
    world = absolute_name(world) if world is not None else None
    recipe = replace(Recipe.from_json(override(_with_method(read_settings(path), overrides), overrides)), out=path)
    trained_in = tuple(open_world(place.world) for place in recipe.places)
    if world is not None and world not in [place.world for place in recipe.places]:
        recipe = replace(recipe.at(recipe.places[0].world), world=world)  # a world that it was not trained in
    else:
        recipe = recipe.alone(world or "")
    seed = recipe.train.seed if seed is None else seed
    check_bounds(replace(recipe.train, seed=seed))
    return recipe, seed, trained_in


def _open_run(path: Path, overrides: dict[tuple[str, ...], Any], name: str, layers: Sequence[int]) -> Target:
    recipe, seed, trained_in = _run_recipe(path, overrides)
    if recipe.model in AGENTS:
        raise TacitError(
            f"{path} evaluated the {recipe.model}, which has no weights; use "
            f"`tacit eval {recipe.model} --world {recipe.world}`."
        )
    checkpoint = None
    if name != UNTRAINED:
        checkpoint = open_checkpoints(path).find(name or "newest")
    label = f"{path} ({checkpoint.path.name if checkpoint else UNTRAINED})"
    return _open(label, recipe, seed, path, checkpoint, trained_in, layers=layers)


def _with_method(document: Document, overrides: Overrides) -> Document:
    """A run's settings under another method: settings that both methods have keep the run's values."""
    settings = {f.name for f in fields(get_method(overrides.get(("method", "name"), document["method"]["name"])))} | {"name"}

    def shared(table: Document) -> Document:
        own = {k: v for k, v in table.get("method", {}).items() if k in settings}
        return {**table, "method": own} if own else {k: v for k, v in table.items() if k != "method"}

    worlds = {world: shared(table) for world, table in document.get("worlds", {}).items()}
    return {**shared(document), **({"worlds": worlds} if worlds else {})}


def _open(
    label: str,
    recipe: Recipe,
    seed: int,
    run: Path | None = None,
    checkpoint: Checkpoint | None = None,
    texts: Sequence[Environment] = (),
    policy: SamplingPolicy | None = None,
    layers: Sequence[int] = (),
) -> Target:
    """`texts`: worlds whose text trained a tiny model's tokenizer, if not the played one. `policy`: if already loaded."""
    world = open_world(recipe.world)
    recipe = check_sampling(recipe, world, loads=policy is None)
    check_layers(recipe, layers)
    if policy is None:
        policy = loaded = load_policy(recipe.main, recipe.train.seed, texts or (world,))
        if checkpoint is not None:
            loaded.load(checkpoint.path / "policy")
    context = recipe.settings.context(world)
    check_chat_support(context, policy)
    sampling = evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world))
    return Target(label, recipe, world, context, policy, sampling, seed, run, checkpoint)


def _open_agent(name: str, overrides: Overrides, actor: Callable[[Task], Expert] | None) -> Target:
    """The caller's own agent, the world's expert, or its rule agent, which reads a policy's prompts."""
    _needs_world(name, overrides)
    reads = actor is None and name == RULE_AGENT
    recipe = Recipe.from_json(override(RULE_AGENT_DEFAULTS if reads else {}, overrides))
    world = open_world(recipe.world)
    if reads and world.reader is None:
        raise TacitError(f"world {world.name!r} has no rule agent; use its expert (`tacit eval expert`).")
    recipe = check_sampling(recipe, world, loads=False)
    context: Context
    policy: SamplingPolicy = Echo()
    if actor is not None:
        context, identity = ActingContext(actor), name
    elif reads and world.reader is not None:
        context, policy, identity = recipe.settings.context(world), RulePolicy(world.reader), f"reader of {world.name}"
    else:
        context = expert_context(world, recipe.train)
        identity = f"expert of {world.name}: {recipe.train.sft.expert or next(iter(world.experts))}"
    return Target(name, recipe, world, context, policy, Sampling(temperature=0.0), recipe.train.seed, identity=identity)


def _needs_world(name: str, overrides: Overrides, place: bool = False) -> None:
    """Raise if no world is set. `place`: the name may be a missing run directory, so the error says so."""
    if ("world",) not in overrides:
        if not place or name in (*TINY_SIZES, *BASES):
            where = "add --world, or world=… from Python (see `tacit list worlds`)"
            raise TacitError(f"{name!r} needs a world: {where}.")
        there = describe_directory(Path(name))
        here = f" Runs here: {', '.join(runs)}." if not Path(name).is_dir() and (runs := find_runs(Path())) else ""
        model = "A model needs a world: add --world (see `tacit list worlds`)."
        raise TacitError(f"{name!r} is not a run directory: {there} {model}{here}")
