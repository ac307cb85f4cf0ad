"""An agent to put into a program of your own: it is told its task, sees, acts, and is told what came of it.

    agent = Agent.load("modules/alfworld")
    agent.begin(task)
    observation, done = world.reset(task), False
    while not done:
        transition = world.step(agent.act(observation))
        agent.observe(transition)
        observation, done = transition.observation, transition.done

It keeps no transcript. What it remembers of an episode is what its context keeps: the tracker's state and the turn before.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from tacit.modules.router import Router
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.replay import PromptRenderer
from tacit.rollout.worlds import InProcessPool

# One episode as a module plays it: what it is asked at each turn, and what its answer means.
#
#     request = episode.ask(observation, policy)       what it reads now, as tokens
#     action = episode.take(completion)                what it wrote, as the world understands it
#     episode.tell(transition)                         what came of it
#
# Whoever asks the model is somebody else: an `Agent` one at a time, a server many at once. Both play the same episode, since a
# request's seed is a function of the episode's and of the turn.


def playing(module: Module, context: Context, temperature: float | None = None) -> Sampling:
    """How a module is sampled when it plays: as it was measured, or at another temperature; its format says where it stops."""
    own = module.sampling if temperature is None else replace(module.sampling, temperature=temperature)
    return replace(own, stop=tuple(dict.fromkeys((*context.format.stop, *own.stop))))


class Episode:
    def __init__(self, module: Module, context: Context, task: Task, sampling: Sampling, seed: int = 0) -> None:
        self.module, self.task, self.sampling, self.seed = module, task, sampling, seed
        self._format = context.format
        self._renderer = PromptRenderer(context, task)
        self.prompt: Prompt | None = None
        """what it read last"""
        self.action: str | None = None
        """done, but not yet answered"""
        self._wrote: str | None = None
        """in its place, where it was no action"""

    @property
    def turns(self) -> int:
        """that are over"""
        return self._renderer.turns

    @property
    def block(self) -> str:
        """the tracker's state block in what it read last; empty where it reads none"""
        return self._renderer.block

    def ask(self, observation: Observation, tokenizer: Tokenizer) -> Request:
        if self.action is not None:
            raise TacitError(f"the agent did {self.action!r} and was not told what came of it: call observe(transition) first.")
        room = self.sampling.max_tokens
        self.prompt, tokens, fits = self._renderer.render(observation, tokenizer, room)
        if not fits:
            raise TacitError(
                f"the prompt has {len(tokens)} tokens, and {room} more for an action do not fit in the "
                f"model's {tokenizer.context_limit}; the world says too much in one turn for this module."
            )
        return Request(tokens, derive(self.seed, self.turns))

    def take(self, completion: Completion) -> Parsed:
        """What was meant. What cannot be understood is passed on as it was written."""
        parsed = self._format.parse(completion.text)
        self.action, self._wrote = parsed.action, None if parsed.valid else completion.text
        return parsed

    def tell(self, transition: Transition) -> Mapping[str, float]:
        if self.action is None:
            raise TacitError("the agent has not acted since it was last told: call act(observation) first.")
        signals = self._renderer.record(self.action, transition, self._wrote)
        self.action = self._wrote = None
        return signals


class Agent:
    """Plays one episode at a time with the module of its task's family. Not for use by several threads at once."""

    def __init__(self, router: Router, temperature: float | None = None) -> None:
        """`temperature` instead of the one each module was measured at; 0 is greedy."""
        self.router, self._temperature = router, temperature
        self._episode: Episode | None = None

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        base: str | None = None,
        fallback: str | None = None,
        temperature: float | None = None,
        world: Environment | None = None,
        engine: EngineSettings | None = None,
    ) -> Agent:
        """A module, or a directory of modules. Another base, another tracker, another wording or damaged files are refused.

        `base` is where the base model lies, if not where it was trained; `world` is for a world of your own that cannot be
        found under the name it was trained under.
        """
        modules = find_modules(path)
        names = sorted({module.world for module in modules.values()})
        if len(names) > 1:
            raise TacitError(
                f"the modules in {path} are of several worlds ({', '.join(names)}); load each by its own directory."
            )
        if world is None:
            from tacit.worlds import get_environment

            world = get_environment(names[0])
        return cls(Router(modules, world, engine, base, fallback), temperature)

    @property
    def module(self) -> Module:
        """the one that plays the present episode"""
        return self._now().module

    @property
    def prompt(self) -> Prompt | None:
        """what it read last"""
        return self._episode.prompt if self._episode else None

    def begin(self, task: Task | str, family: str = "", seed: int = 0) -> None:
        """A new episode: a task of the world, or only its goal and the family it belongs to. `seed` decides what is drawn."""
        if isinstance(task, str):
            task = Task(self.router.world.name, "", family or self._only_family(), "", 0, task)
        module = self.router.choose(task.family)
        episode = Episode(module, self.router.context(module), task, self.sampling(module), seed)
        self.router.policy(module)  # loaded now, so that the first action does not wait
        self._episode = episode

    def act(self, observation: Observation | str) -> str:
        """The next action, as the world understands it. What cannot be understood is passed on as it was written."""
        episode = self._now()
        seen = Observation(observation) if isinstance(observation, str) else observation
        policy = self.router.policy(episode.module)  # another episode may have put on another module meanwhile
        (completion,) = policy.sample([episode.ask(seen, policy)], episode.sampling)
        return episode.take(completion).action

    def observe(self, transition: Transition) -> None:
        """What came of the last action."""
        self._now().tell(transition)

    def play(self, world: World, task: Task, seed: int = 0, max_steps: int = 0) -> Trajectory:
        """A whole episode, to its end or to the limit of steps that the module was measured with."""
        module = self.router.choose(task.family)
        context, policy = self.router.agent(module.skill)
        plan, steps = EpisodePlan(task, seed), max_steps or module.max_steps
        (played,) = rollout([plan], context, InProcessPool(lambda: world), policy, self.sampling(module), steps)
        return played

    def sampling(self, module: Module) -> Sampling:
        return playing(module, self.router.context(module), self._temperature)

    def _now(self) -> Episode:
        if self._episode is None:
            raise TacitError("the agent has no task yet: call begin(task) first.")
        return self._episode

    def _only_family(self) -> str:
        """The family of a goal that came without one: clear only where there is a single one."""
        families = sorted({family for module in self.router.modules.values() for family in module.families})
        if len(families) == 1:
            return families[0]
        raise TacitError(f"which kind of task is it? Say begin(goal, family=…), one of {', '.join(families)}.")
