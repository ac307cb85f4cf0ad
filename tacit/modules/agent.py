"""Play modules: an agent for your own program, and a router that loads the module that serves a task.

    agent = Agent.load("modules/alfworld")
    agent.begin(task)
    observation, done = world.reset(task), False
    while not done:
        transition = world.step(agent.act(observation))
        agent.observe(transition)
        observation, done = transition.observation, transition.done

It keeps no transcript: its memory is what its context keeps, such as the tracker's state and the previous turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.config.agents import Target, open_target
from tacit.config.checks import check_sampling, open_world
from tacit.config.recipe import Overrides, Recipe, absolute_name, override
from tacit.core.actions import Parsed
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Context
from tacit.core.protocols import Request, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.tasks import GoalClassifier
from tacit.core.types import Completion, Observation, Prompt, Task, Trajectory, Transition
from tacit.core.world import Environment, Expert, World
from tacit.engines.local.settings import EngineSettings
from tacit.modules.export import ADAPTER_CONFIG
from tacit.modules.module import Module, find_modules, has_modules, hash_modules, make_context
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import PromptRenderer
from tacit.rollout.worlds import InProcessPool
from tacit.training.setup import evaluation_sampling

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy


TRAINING_GOALS = 512  # training tasks per world from which the router learns the words of its families


class Router:
    """Loads the module that serves a task's family. Only the active module is in memory. Switching replaces the adapter
    (megabytes); the base stays loaded. Full models, and adapters of another rank or other target layers, reload the model."""

    def __init__(
        self,
        modules: Mapping[str, Module],
        world: Environment | Mapping[str, Environment],
        engine: EngineSettings | None = None,
        base: str | None = None,
        fallback: str | None = None,
    ) -> None:
        """Check every module without loading any. `world` is the modules' world, or one for each name of a world in them.
        `base` overrides the base's path. `fallback` is the skill for families that no module serves; without one they are
        errors."""
        self.modules, self.fallback = dict(modules), fallback
        self.worlds = {m.world: world if isinstance(world, Environment) else world[m.world] for m in self.modules.values()}
        self.loads = Counter[str]()  # how often `models` and `adapters` were loaded
        self._engine = replace(engine or EngineSettings(), value_head=False)
        self._active: Module | None = None
        self._policy: LocalPolicy | None = None
        self._shape: Any = None
        self._base = base
        if fallback is not None and fallback not in self.modules:
            raise TacitError(f"fallback {fallback!r} is not one of the modules {self._names()}.")
        for module in self.modules.values():
            if mismatches := module.find_mismatches(self.worlds[module.world], base):
                raise TacitError(mismatches[0])

    @property
    def world(self) -> Environment:
        """the world of the modules; of several, the first"""
        return next(iter(self.worlds.values()))

    @property
    def families(self) -> list[str]:
        """the families that a module serves, sorted"""
        return sorted({family for module in self.modules.values() for family in module.families})

    @cached_property
    def _goals(self) -> GoalClassifier:
        """Classifies a goal by world and family; trained on the goals of the worlds' training tasks."""
        examples = []
        for name, world in self.worlds.items():
            families = tuple(f for m in self.modules.values() if m.world == name for f in m.families)
            tasks = world.tasks_of(world.splits[0], TRAINING_GOALS, 0, families) if world.playable else ()
            examples += [(task.goal, f"{world.name}/{task.family}") for task in tasks]
        return GoalClassifier(examples)

    def find_task(self, goal: str, family: str = "", world: str = "") -> Task:
        """A task with this goal. Without a family, use the only one that is served, or classify the goal."""
        pairs = dict.fromkeys((self.worlds[m.world].name, f) for m in self.modules.values() for f in m.families)
        served = [(name, f) for name, f in pairs if family in ("", f) and world in ("", name)]
        if family and len({name for name, _ in served}) <= 1:
            return Task(served[0][0] if served else world or self.world.name, "", family, "", 0, goal)
        if len(served) != 1:
            try:
                served = [tuple(self._goals.classify(goal).split("/", 1))]  # type: ignore[list-item]
            except TacitError as error:
                raise TacitError(
                    f"the goal needs a family: {error}. Name it, begin(goal, family=…): {self._names()}."
                ) from error
        return Task(served[0][0], "", served[0][1], "", 0, goal)

    def choose(self, family: str, world: str = "") -> Module:
        """The module that serves a family of a world (empty: of any world). If several do, the one with the fewest families."""
        any_world = not world or len(self.worlds) == 1
        modules = [m for m in self.modules.values() if any_world or self.worlds[m.world].name == world]
        matching = sorted((m for m in modules if family in m.families), key=lambda m: len(m.families))
        if not matching:
            if self.fallback is not None:
                return self.modules[self.fallback]
            raise TacitError(
                f"no module serves family {family!r}; the modules are {self._names()}. Train one, choose a fallback "
                "(fallback=…, --fallback SKILL), or leave the family out (--families …)."
            )
        if len(matching) > 1 and len(matching[0].families) == len(matching[1].families):
            raise TacitError(f"{matching[0].path} and {matching[1].path} both serve family {family!r}; keep one of them.")
        return matching[0]

    def context(self, module: Module) -> Context:
        return make_context(module.context, self.worlds[module.world])

    def policy(self, module: Module) -> LocalPolicy:
        """The policy with this module's weights. Adapters of one base share a policy object, so earlier results switch, too."""
        from tacit.engines.local.policy import load_policy

        if self._policy is not None and module is self._active:
            return self._policy
        module.check_files()
        shape = adapter_shape(module)
        if not module.adapter or self._policy is None or shape != self._shape:
            self._policy = None  # free it first: two models may not fit in memory
            self._policy = load_policy(*find_weights(module, self._engine, self._base, self.worlds[module.world]))
            self.loads["models"] += 1
        if module.adapter:
            self._policy.load_adapter(module.path)
            self.loads["adapters"] += 1
        self._active, self._shape = module, shape
        return self._policy

    def name(self, task: Task) -> str:
        module = self.choose(task.family, task.world)
        return next(name for name, other in self.modules.items() if other is module)

    def agent(self, name: str) -> tuple[Context, LocalPolicy]:
        module = self.modules[name]
        return self.context(module), self.policy(module)

    def _names(self) -> str:
        return ", ".join(f"{name} ({', '.join(module.families)})" for name, module in self.modules.items())


def adapter_shape(module: Module) -> tuple[int, float, tuple[str, ...]] | None:
    """Rank, alpha and target modules of a LoRA adapter; None for a full model."""
    if not module.adapter:
        return None
    config = read_json(module.path / ADAPTER_CONFIG)
    return config["r"], float(config["lora_alpha"]), tuple(sorted(config["target_modules"]))


def find_weights(module: Module, engine: EngineSettings, base: str | None, world: Environment) -> tuple[str, EngineSettings]:
    """(model to load, engine settings): a full model, or the base with room for the module's adapter. `base` overrides the
    base's path."""
    if (shape := adapter_shape(module)) is None:
        return str(module.path), replace(engine, lora_rank=0)
    rank, alpha, targets = shape
    settings = replace(engine, lora_rank=rank, lora_alpha=alpha, lora_targets=targets)
    return module.base.with_model(base).source(world), settings


# Modules as evaluation targets

CHANGEABLE = {(name,) for name in ("seed", "families", "workers", "workers_at", "world_timeout_s", "max_tokens", "world")} | {
    ("engine", name) for name in ("device", "dtype", "threads", "token_budget", "max_batch")
}  # settings that may be overridden, besides `evaluation`; training fixed the others


def open_agent(
    name: str,
    overrides: Overrides,
    checkpoint: str = "",
    actor: Callable[[Task], Expert] | None = None,
    base: str | None = None,
    fallback: str | None = None,
) -> Target:
    """Open modules, or anything that `open_target` accepts. `base` and `fallback` apply to modules."""
    path = find_modules_directory(Path(name).expanduser())
    if actor is None and not checkpoint and has_modules(path):
        return open_modules(path, overrides, base, fallback)
    return open_target(name, overrides, checkpoint, actor)


def find_modules_directory(path: Path) -> Path:
    """`path` if it has modules, else the only directory in it that has some, else `path`."""
    directories = list_modules_directories(path)
    if len(directories) > 1:
        raise TacitError(f"{path} has several directories of modules; choose one: {', '.join(map(str, directories))}.")
    return directories[0]


def list_modules_directories(path: Path) -> list[Path]:
    """`path` if it has modules, else the directories in it that have some, else `path`."""
    if has_modules(path) or not path.is_dir():
        return [path]
    return [d for d in sorted(path.iterdir()) if not d.name.startswith(".") and has_modules(d)] or [path]


def open_modules(path: Path, overrides: Overrides, base: str | None, fallback: str | None) -> Target:
    """A module, or a directory of modules of which each plays its families."""
    modules = find_modules(path)
    recipe = module_recipe(path, modules, overrides)
    world = open_world(recipe.world)
    recipe = check_sampling(recipe, world, loads=False)
    router = Router(modules, world, recipe.engine, base, fallback)
    first = next(iter(modules.values()))
    context, policy = router.agent(first.skill)
    sampling = evaluation_sampling(recipe.train, recipe.train.max_tokens or first.sampling.max_tokens)
    identity = hash_modules(modules.values(), fallback)
    return Target(str(path), recipe, world, context, policy, sampling, recipe.train.seed, identity=identity, several=router)


def module_recipe(path: Path, modules: Mapping[str, Module], overrides: Overrides) -> Recipe:
    """The settings to evaluate modules with: the first module's, overridden by `overrides`. Several modules default to all
    families, and to the largest `max_tokens` of any."""
    worlds = sorted({module.world for module in modules.values()})
    if len(worlds) > 1:
        raise TacitError(f"the modules in {path} are for several worlds ({', '.join(worlds)}); choose one of them.")
    for key, value in overrides.items():
        if key == ("world",) and absolute_name(value) != absolute_name(worlds[0]):
            raise TacitError(f"the modules in {path} are for world {worlds[0]!r}, not {value!r}.")
        if key not in CHANGEABLE and key[0] != "evaluation":
            raise TacitError(
                f"{'.'.join(key)} = {value}: fixed when the module was trained. The panel (split, tasks, families, …), the "
                "sampling and the device can be changed."
            )
    first = next(iter(modules.values()))
    document = dict(first.run["settings"])
    if len(modules) > 1:
        document["families"] = ""
        document["max_tokens"] = max(module.sampling.max_tokens for module in modules.values())
    return Recipe.from_json(override(document, overrides))


# Agents


def playing_sampling(module: Module, context: Context, temperature: float | None = None) -> Sampling:
    """The sampling a module was evaluated with, optionally at another temperature, with its format's stop strings."""
    sampling = module.sampling if temperature is None else replace(module.sampling, temperature=temperature)
    return replace(sampling, stop=tuple(dict.fromkeys((*context.format.stop, *sampling.stop))))


class Episode:
    """One episode of a module. The caller does the sampling: an `Agent` one request at a time, a server in batches.

        request = episode.build_request(observation, policy)
        action = episode.parse_completion(completion)
        episode.record(transition)

    A request's seed depends only on the episode's seed and the turn, so both callers get the same actions.
    """

    def __init__(self, module: Module, context: Context, task: Task, sampling: Sampling, seed: int = 0) -> None:
        self.module, self.task, self.sampling, self.seed = module, task, sampling, seed
        self._format = context.format
        self._renderer = PromptRenderer(context, task)
        self.prompt: Prompt | None = None  # the last prompt
        self.action: str | None = None  # the last action, until its transition is recorded
        self._invalid_text: str | None = None  # the completion, if it was not a valid action

    @property
    def turns(self) -> int:
        """completed turns"""
        return self._renderer.turns

    @property
    def block(self) -> str:
        """the state block in the last prompt; empty if there was none"""
        return self._renderer.reader.block

    def build_request(self, observation: Observation, tokenizer: Tokenizer) -> Request:
        if self.action is not None:
            raise TacitError(f"the result of {self.action!r} was not recorded: call observe(transition) first.")
        max_tokens = self.sampling.max_tokens
        self.prompt, tokens, fits = self._renderer.render(observation, tokenizer, max_tokens)
        if not fits:
            raise TacitError(
                f"the prompt has {len(tokens)} tokens; with {max_tokens} more for an action it exceeds the model's "
                f"{tokenizer.context_limit}. The observation is too long for this module."
            )
        return Request(tokens, derive(self.seed, self.turns))

    def parse_completion(self, completion: Completion) -> Parsed:
        """The action. Invalid text is passed on verbatim."""
        parsed = self._format.parse(completion.text)
        self.action, self._invalid_text = parsed.action, None if parsed.valid else completion.text
        return parsed

    def record(self, transition: Transition) -> Mapping[str, float]:
        if self.action is None:
            raise TacitError("no action to record a result for: call act(observation) first.")
        signals = self._renderer.record(self.action, transition, self._invalid_text)
        self.action = self._invalid_text = None
        return signals


class Agent:
    """Plays one episode at a time with the module of the task's family. Not thread-safe."""

    def __init__(self, router: Router, temperature: float | None = None) -> None:
        """`temperature` overrides each module's own; 0 is greedy."""
        self.router, self._temperature = router, temperature
        self._episode: Episode | None = None

    @classmethod
    def load(
        cls,
        path: Path | str | Sequence[Path | str],
        *,
        base: str | None = None,
        fallback: str | None = None,
        temperature: float | None = None,
        world: Environment | None = None,
        engine: EngineSettings | None = None,
    ) -> Agent:
        """Load a module, a directory of modules, or several directories, also of several worlds. A different base, tracker or
        wording, or damaged files, are errors. `base` overrides the base's path. `world` is for a world of your own that cannot
        be found by name."""
        from tacit.worlds import get_environment

        loaded = [
            module
            for each in ([path] if isinstance(path, str | Path) else path)
            for directory in list_modules_directories(Path(each).expanduser())
            for module in find_modules(directory).values()
        ]
        skills = Counter(module.skill for module in loaded)
        modules = {m.skill if skills[m.skill] == 1 else f"{m.world}/{m.skill}": m for m in loaded}
        if len(modules) < len(loaded):
            raise TacitError(f"two modules have the same skill and world; keep one: {', '.join(str(m.path) for m in loaded)}.")
        worlds = {name: world or get_environment(name) for name in dict.fromkeys(m.world for m in loaded)}
        return cls(Router(modules, worlds, engine, base, fallback), temperature)

    @property
    def module(self) -> Module:
        """the module that plays the current episode"""
        return self._current_episode().module

    @property
    def prompt(self) -> Prompt | None:
        return self._episode.prompt if self._episode else None

    def begin(self, task: Task | str, family: str = "", seed: int = 0) -> None:
        """Start an episode with a task or a goal. Without a family, the words of the goal decide it. `seed` is for sampling."""
        if isinstance(task, str):
            task = self.router.find_task(task, family)
        module = self.router.choose(task.family, task.world)
        episode = Episode(module, self.router.context(module), task, self.sampling(module), seed)
        self.router.policy(module)  # load now, so that the first action is fast
        self._episode = episode

    def act(self, observation: Observation | str) -> str:
        """The next action. Invalid text is passed on verbatim."""
        episode = self._current_episode()
        observation = Observation(observation) if isinstance(observation, str) else observation
        policy = self.router.policy(episode.module)  # the router may have switched to another module
        (completion,) = policy.sample([episode.build_request(observation, policy)], episode.sampling)
        return episode.parse_completion(completion).action

    def observe(self, transition: Transition) -> None:
        """Record the result of the last action."""
        self._current_episode().record(transition)

    def play(self, world: World, task: Task, seed: int = 0, max_steps: int = 0) -> Trajectory:
        """Play one episode, at most `max_steps` turns (0: as in the module's evaluation)."""
        module = self.router.choose(task.family, task.world)
        context, policy = self.router.context(module), self.router.policy(module)
        plan, steps = EpisodePlan(task, seed), max_steps or module.max_steps
        (trajectory,) = rollout([plan], context, InProcessPool(lambda: world), policy, self.sampling(module), steps)
        return trajectory

    def sampling(self, module: Module) -> Sampling:
        return playing_sampling(module, self.router.context(module), self._temperature)

    def _current_episode(self) -> Episode:
        if self._episode is None:
            raise TacitError("no episode in progress: call begin(task) first.")
        return self._episode
