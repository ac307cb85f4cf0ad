"""Who plays: a run's checkpoint, a model, the world's expert, its reader, a model behind an endpoint, or the person at the
keyboard. All play through one rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tacit.config.checks import AGENTS, EXPERT, READER, check_sampling, check_values, open_world, open_worlds, with_split
from tacit.config.recipe import Document, PolicyRecipe, Recipe, Said, anchored_name, override
from tacit.config.resources import load_policy
from tacit.config.values import to_data
from tacit.core.actions import BARE, ActionFormat
from tacit.core.chat import Chat
from tacit.core.errors import TacitError
from tacit.core.method import Context, PromptReader
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.types import ActionStyle, Completion, Condition, Observation, Prompt, Task, Trajectory, Transition
from tacit.core.world import Environment, Expert
from tacit.engines.endpoint.policy import ByteTokens
from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES
from tacit.evaluation.evaluate import Alone, Route
from tacit.evaluation.panels import Rules
from tacit.methods import get_method
from tacit.rollout.encoding import check_chat_support
from tacit.rollout.episodes import SamplingPolicy
from tacit.rollout.worlds import TimedExpert
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import SETTINGS, describe_directory, find_runs, open_checkpoints, read_settings
from tacit.training.setup import WorldSetup, completion_limit, evaluation_sampling

# Who stands in for a policy: the expert or a person, who act on observations, and a reader, which answers by a rule.


@dataclass(frozen=True)
class Advised(Context):
    """A context for one who acts on observations, not on prompts: the prompt *is* the action, and `Echo` repeats it. So the
    expert and a person play through the same rollout and are scored by the same code as a policy."""

    make: Callable[[Task], Expert]
    style: ActionStyle = "bare"
    format: ActionFormat = BARE

    def begin(self, task: Task, condition: Condition) -> PromptReader:
        actor = self.make(task)
        if not hasattr(actor, "act"):
            raise TacitError(
                f"{self.make!r} made {actor!r} of a task, which cannot play: it must be a class, or a function of a task, "
                "whose object has `act(observation)`."
            )
        return _Adviser(actor)


class _Adviser(PromptReader):
    def __init__(self, actor: Expert) -> None:
        self._actor = actor

    def read(self, observation: Observation) -> Prompt:
        action = self._actor.act(observation)
        if not isinstance(action, str):
            raise TacitError(f"{self._actor!r} acted with {action!r}; an action is text.")
        return Prompt(task="", now=action)

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        return {}


class Echo(ByteTokens):
    """Says what it reads."""

    def digest(self) -> str:
        return EXPERT

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        nothing = np.zeros(0, np.int64)
        return [Completion(nothing, np.zeros(0, np.float32), self.decode(r.prompt), "stop") for r in requests]


class ByRule(ByteTokens):
    """Answers each prompt as a rule says, and knows nothing but its text; of a conversation what its messages say."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule

    def digest(self) -> str:
        return READER

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.encode_prompt("\n".join(message.content for message in chat.messages if message.content))

    def sample(self, requests: Sequence[Request], sampling: Sampling, layer: int | None = None) -> list[Completion]:
        answers = [self._rule(self.decode(request.prompt)) for request in requests]
        tokens = [self.encode_completion(answer) for answer in answers]
        return [Completion(t, np.zeros(len(t), np.float32), a, "stop") for t, a in zip(tokens, answers, strict=True)]


def advised_by_expert(world: Environment, timeout_s: float) -> Advised:
    """Of a world's own expert, which has as long for an answer as the world has."""
    return Advised(partial(TimedExpert, world.expert(), timeout_s))


def as_policy(name: str, setup: WorldSetup) -> tuple[Policy, WorldSetup]:
    """The expert or the reader in the place of a policy that a run trains: it can be measured there, and that is all."""
    if name == EXPERT:
        advised = advised_by_expert(setup.world, setup.settings.world_timeout_s)
        return cast(Policy, Echo()), replace(setup, method=replace(setup.method, context=advised))
    assert setup.world.reader is not None, "refused before"
    return cast(Policy, ByRule(setup.world.reader)), setup


HUMAN = "human"
READS = {"name": "constant_context", "wording": "terse"}
"""what a reader reads unless told otherwise: what the smallest policies do"""
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Target:
    label: str
    recipe: Recipe
    world: Environment
    context: Context
    policy: SamplingPolicy
    sampling: Sampling
    seed: int
    """of the episodes played"""
    run: Path | None = None
    checkpoint: Checkpoint | None = None
    identity: str = ""
    """what names it where there are no weights to hash"""
    settle: Callable[[Trajectory], Trajectory] | None = None
    """the last change to an episode of its, before it is kept"""
    several: Route | None = None
    """where it is several, each for some families: who plays which task, instead of `policy` in `context`"""

    @property
    def route(self) -> Route:
        return self.several or Alone(self.context, self.policy)

    @property
    def rules(self) -> Rules:
        chosen = self.recipe.train.evaluation
        return Rules(self.sampling, chosen.max_steps or self.world.max_steps, self.seed, chosen.repeats)

    @property
    def fingerprint(self) -> str:
        """A hash of the weights; for an expert or an endpoint, its name."""
        return self.identity or cast(Policy, self.policy).digest()

    @property
    def numbers(self) -> str:
        """Number format and device of the weights, as they are here; an expert or an endpoint has none here."""
        return getattr(self.policy, "numbers", "")

    @property
    def reads(self) -> Document:
        """The settings that decide what it reads: an expert reads none of our prompts."""
        if isinstance(self.context, Advised):
            return {}
        own = to_data(self.recipe.settings)
        return {"method": self.recipe.method, **{name: value for name, value in own.items() if name != "schedule"}}


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible address."""

    url: str
    model: str
    key_variable: str
    concurrency: int
    timeout_s: float


def open_target(
    name: str,
    said: Said,
    checkpoint: str = "",
    actor: Callable[[Task], Expert] | None = None,
) -> Target:
    """`name` is a run directory, one of its checkpoints, a model, `expert`, `reader`, or whatever `actor` plays. What cannot
    work is refused first."""
    said = dict(said)
    path = Path(name).expanduser()
    if actor is not None or name == EXPERT:
        return _open_actor(name, said, actor)
    if name == READER:
        return _open_reader(said)
    if (path / SETTINGS).exists():
        return _open_run(path, said, checkpoint)
    if path.parent.name == "checkpoints" and (path.parent.parent / SETTINGS).exists():
        return _open_run(path.parent.parent, said, checkpoint or path.name)
    if checkpoint:
        raise TacitError(f"--checkpoint {checkpoint} is for runs, and {name!r} is none: it has no {SETTINGS}.")
    _needs_world(name, said, place=True)
    recipe = Recipe.from_json(override({"model": name}, said))
    return _open(name, recipe, recipe.train.seed, None, None)


def open_loaded(policy: SamplingPolicy, said: Said, like: str = "") -> Target:
    """A policy that is in memory already, reading what the settings say, or what the run `like` does."""
    said = dict(said)
    if like:
        recipe, seed, trained_in = _run_recipe(Path(like).expanduser(), said)
        return _open(f"a policy as {like}", recipe, seed, None, None, trained_in, policy)
    _needs_world("a policy", said)
    recipe = Recipe.from_json(override({}, said))
    return _open("a policy", recipe, recipe.train.seed, None, None, policy=policy)


def open_endpoint(endpoint: Endpoint, said: Said) -> Target:
    """It reads what any language model would: the method's prompts, as one message each."""
    from tacit.engines.endpoint.client import ChatClient
    from tacit.engines.endpoint.policy import ChatPolicy

    client = ChatClient(endpoint.url, endpoint.model, endpoint.key_variable, endpoint.timeout_s)
    _needs_world(endpoint.model, said)
    recipe = Recipe.from_json(override({"model": endpoint.model}, said))
    world = open_world(recipe.world)
    check_values(recipe)
    recipe = with_split(recipe, world)
    context = recipe.settings.context(world)
    policy = ChatPolicy(client, endpoint.concurrency)
    sampling = evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world))
    label = f"{endpoint.model} at {client.url}"
    return Target(label, recipe, world, context, policy, sampling, recipe.train.seed, identity=label, settle=policy.settle)


def _run_recipe(path: Path, said: dict[tuple[str, ...], Any]) -> tuple[Recipe, int, tuple[Environment, ...]]:
    """A run's settings with what else is said; the seed of the episodes; the worlds it was trained in."""
    # The seed of the episodes may be another; the seed of the run made its first weights and stays.
    seed = said.pop(("seed",), None)
    world = said.pop(("world",), None)
    world = anchored_name(world) if world is not None else None
    recipe = replace(Recipe.from_json(override(_under(read_settings(path), said), said)), out=path)
    trained_in = open_worlds(recipe)
    if world is not None and world not in [place.world for place in recipe.places]:
        recipe = replace(recipe.at(recipe.places[0].world), world=world)  # somewhere it has never been
    else:
        recipe = recipe.alone(world or "")
    return recipe, recipe.train.seed if seed is None else seed, trained_in


def _open_run(path: Path, said: dict[tuple[str, ...], Any], name: str) -> Target:
    recipe, seed, trained_in = _run_recipe(path, said)
    if recipe.model in AGENTS:
        raise TacitError(
            f"{path} has measured the {recipe.model}, which has no weights: `tacit eval {recipe.model} --world {recipe.world}`."
        )
    found = None
    if name != UNTRAINED:
        saved = open_checkpoints(path)
        if not saved.all():
            raise TacitError(
                f"{path} has no checkpoint yet. Continue it with `tacit train --resume {path}`, or look at what it starts "
                f"from with --checkpoint {UNTRAINED}."
            )
        found = saved.find(name or "newest")
    label = f"{path} ({found.path.name if found else UNTRAINED})"
    return _open(label, recipe, seed, path, found, trained_in)


def _under(document: Document, said: Said) -> Document:
    """A run's settings as those of another method, where one is named: what both have stays as the run had it."""
    name = said.get(("method", "name"), document["method"]["name"])
    known = {f.name for f in fields(get_method(name))} | {"name"}

    def shared(table: Document) -> Document:
        own = {k: v for k, v in table.get("method", {}).items() if k in known}
        return {**table, "method": own} if own else {k: v for k, v in table.items() if k != "method"}

    worlds = {world: shared(table) for world, table in document.get("worlds", {}).items()}
    return {**shared(document), **({"worlds": worlds} if worlds else {})}


def _open(
    label: str,
    recipe: Recipe,
    seed: int,
    run: Path | None,
    checkpoint: Checkpoint | None,
    texts: Sequence[Environment] = (),
    policy: SamplingPolicy | None = None,
) -> Target:
    """`texts`: the worlds whose text a tiny model's tokenizer was trained on, where they are not the one it plays in.
    `policy`: one that is loaded already."""
    world = open_world(recipe.world)
    if policy is not None:
        check_values(recipe)
        recipe = with_split(recipe, world)
    else:
        recipe = check_sampling(recipe, world)
        main = PolicyRecipe(recipe.model, recipe.engine_name, recipe.engine, recipe.tiny)
        policy = loaded = load_policy(main, recipe.train.seed, texts or (world,))
        if checkpoint is not None:
            loaded.load(checkpoint.path / "policy")
    context = recipe.settings.context(world)
    check_chat_support(context, policy)
    sampling = evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world))
    return Target(label, recipe, world, context, policy, sampling, seed, run, checkpoint)


def _open_actor(name: str, said: dict[tuple[str, ...], Any], actor: Callable[[Task], Expert] | None) -> Target:
    _needs_world(name, said)
    recipe = Recipe.from_json(override({}, said))
    world = open_world(recipe.world)
    check_values(recipe)
    recipe = with_split(recipe, world)
    context = Advised(actor) if actor else advised_by_expert(world, recipe.train.world_timeout_s)
    identity = f"expert of {world.name}: {next(iter(world.experts), '')}" if actor is None else name
    sampling = Sampling(temperature=0.0)
    return Target(name, recipe, world, context, Echo(), sampling, recipe.train.seed, identity=identity)


def _open_reader(said: dict[tuple[str, ...], Any]) -> Target:
    """The world's rule in the context of a policy, asked as a policy is asked."""
    _needs_world(READER, said)
    recipe = Recipe.from_json(override({"method": dict(READS)}, said))
    world = open_world(recipe.world)
    if world.reader is None:
        raise TacitError(f"world {world.name!r} has no reader; its expert plays without reading (`tacit eval expert`).")
    check_values(recipe)
    recipe = with_split(recipe, world)
    context = recipe.settings.context(world)
    identity = f"reader of {world.name}"
    return Target(
        READER, recipe, world, context, ByRule(world.reader), Sampling(temperature=0.0), recipe.train.seed, identity=identity
    )


def _needs_world(name: str, said: Said, place: bool = False) -> None:
    """`place`: it may be the name of a run that is not there"""
    if ("world",) not in said:
        if not place or name in (*TINY_SIZES, *BASES):
            where = "add --world, or world=… from Python (see `tacit list worlds`)"
            raise TacitError(f"{name!r} can play in any world, so one must be named: {where}.")
        there = describe_directory(Path(name))
        here = f" Runs here: {', '.join(runs)}." if not Path(name).is_dir() and (runs := find_runs(Path())) else ""
        model = "A model needs a world: add --world (see `tacit list worlds`)."
        raise TacitError(f"{name!r} is no run directory: {there} {model}{here}")
