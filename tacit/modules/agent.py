"""An agent for your own program: give it a task, pass observations, get actions.

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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tacit.core.actions import Parsed
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Request, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Completion, Observation, Prompt, Task, Trajectory, Transition
from tacit.core.world import Environment, World
from tacit.engines.local.settings import EngineSettings
from tacit.modules.module import Module, find_modules
from tacit.modules.router import Router, list_modules_directories
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import PromptRenderer
from tacit.rollout.worlds import InProcessPool


def playing_sampling(module: Module, context: Context, temperature: float | None = None) -> Sampling:
    """The sampling a module was evaluated with, optionally at another temperature, with its format's stop strings."""
    own = module.sampling if temperature is None else replace(module.sampling, temperature=temperature)
    return replace(own, stop=tuple(dict.fromkeys((*context.format.stop, *own.stop))))


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
        room = self.sampling.max_tokens
        self.prompt, tokens, fits = self._renderer.render(observation, tokenizer, room)
        if not fits:
            raise TacitError(
                f"the prompt has {len(tokens)} tokens; with {room} more for an action it exceeds the model's "
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

        listed = [
            module
            for each in ([path] if isinstance(path, str | Path) else path)
            for directory in list_modules_directories(Path(each).expanduser())
            for module in find_modules(directory).values()
        ]
        skills = Counter(module.skill for module in listed)
        modules = {m.skill if skills[m.skill] == 1 else f"{m.world}/{m.skill}": m for m in listed}
        if len(modules) < len(listed):
            raise TacitError(f"two modules have the same skill and world; keep one: {', '.join(str(m.path) for m in listed)}.")
        worlds = {name: world or get_environment(name) for name in dict.fromkeys(m.world for m in listed)}
        return cls(Router(modules, worlds, engine, base, fallback), temperature)

    @property
    def module(self) -> Module:
        """the module that plays the current episode"""
        return self._current_episode().module

    @property
    def prompt(self) -> Prompt | None:
        """the last prompt"""
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
        seen = Observation(observation) if isinstance(observation, str) else observation
        policy = self.router.policy(episode.module)  # the router may have switched to another module
        (completion,) = policy.sample([episode.build_request(seen, policy)], episode.sampling)
        return episode.parse_completion(completion).action

    def observe(self, transition: Transition) -> None:
        """Record the result of the last action."""
        self._current_episode().record(transition)

    def play(self, world: World, task: Task, seed: int = 0, max_steps: int = 0) -> Trajectory:
        """Play one episode, at most `max_steps` turns (0: as in the module's evaluation)."""
        module = self.router.choose(task.family, task.world)
        context, policy = self.router.context(module), self.router.policy(module)
        plan, steps = EpisodePlan(task, seed), max_steps or module.max_steps
        (played,) = rollout([plan], context, InProcessPool(lambda: world), policy, self.sampling(module), steps)
        return played

    def sampling(self, module: Module) -> Sampling:
        return playing_sampling(module, self.router.context(module), self._temperature)

    def _current_episode(self) -> Episode:
        if self._episode is None:
            raise TacitError("no episode in progress: call begin(task) first.")
        return self._episode
