"""How a run is carried out, whatever its method. A string under a field is its documentation, here and in `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tacit.core.bounds import AtLeastOne, Basic, Bound, Count, NotNegative, Positive, PositiveShare, Share
from tacit.core.errors import TacitError


@dataclass(frozen=True)
class SupervisedSettings:
    """Step-level imitation of the world's expert or of recorded episodes, before any reinforcement."""

    steps: Basic[Count] = 0
    """optimiser steps; 0 skips the stage"""
    batch: Basic[AtLeastOne] = 64
    """demonstrated turns per step"""
    tasks: Basic[AtLeastOne] = 1000
    """training tasks the expert shows, or recorded episodes that are read"""
    lr: Basic[NotNegative] = 1e-3
    """peak learning rate; warm-up then cosine to zero"""
    warmup: Share = 0.1
    """share of the steps spent warming up"""
    expert: str = ""
    """which of the world's experts to imitate; empty is its first"""
    noise: Annotated[float, Bound(lambda v: 0 <= v < 1, "must be at least 0 and below 1")] = 0.0
    """share of shown turns replaced by a random action, so that recoveries are shown too; the random ones are not imitated"""
    noted: Count = 0
    """further episodes shown with a note in the prompt, written by the world's own hindsight, for policies too small to read
    one unshown (training/demonstrations.py)"""
    step_notes: Count = 0
    """further episodes of which the critical steps are shown, with what hindsight says of each before the request"""
    entries: Count = 0
    """episodes shown as an experience extractor reads them, with the entry to write, for extractors too small to be asked; one
    that has no settings of its own then begins with what was learned here"""
    astray: Share = 0.0
    """share of those notes and entries that are another episode's, so that both have something left to learn"""
    rounds: Count = 0
    """rounds of relabelling after that (DAgger): the policy plays training tasks, the expert says at every turn what it would
    have done there, and both that and the demonstrations are imitated; with `steps` 0 they begin at once, from what the model
    can already"""
    round_tasks: AtLeastOne = 256
    """training tasks the policy plays in each round, at the temperature of practice: those that were not shown first"""
    round_steps: AtLeastOne = 100
    """optimiser steps of each round, with a warm-up and a cosine of their own"""
    round_share: Share = 0.5
    """share of a round's turns that were relabelled, in this round or before; the others are demonstrated"""
    from_: Basic[str] = ""
    """file of recorded episodes to imitate instead of an expert: JSON lines, or a run's trajectories/*.jsonl.gz"""

    def round_begins(self, number: int) -> int:
        """The step after which round `number` (from 1) plays; of one after the last, where the stage ends."""
        return self.steps + (number - 1) * self.round_steps

    @property
    def all_steps(self) -> int:
        """of the demonstrations and of all rounds; 0 skips the stage"""
        return self.round_begins(self.rounds + 1)


@dataclass(frozen=True)
class EvaluationSettings:
    """The fixed panel a run is measured on."""

    split: Basic[str] = ""
    """split the panel is taken from; empty is the world's own: test, or unseen houses"""
    tasks: Basic[Count] = 0
    """tasks on the panel; 0 is 128, or all of a published split"""
    panel: str = ""
    """file with tasks of your own (.json or .jsonl) to measure on, instead of `split` and `tasks`"""
    also: str = ""
    """further splits to measure on after each stage, comma-separated; with as many tasks, a published one with all it has, or
    SPLIT:TASKS; with a question mark (valid_unseen?) only where its tasks are on this machine"""
    repeats: AtLeastOne = 1
    """episodes per task"""
    every: Basic[Count] = 5
    """iterations between evaluations; 0 evaluates only after each stage"""
    patience: Count = 0
    """stop practice once so many evaluations in a row are not above the best before them; 0 never does"""
    untrained: bool = True
    """also measure the policy before anything is taught"""
    temperature: Basic[Annotated[float, Bound(lambda v: v >= 0, "must not be negative; 0 is greedy")]] = 0.4
    """sampling temperature when evaluating"""
    max_steps: Count = 0
    """longest episode when evaluating; 0 is the world's own limit"""
    top_p: PositiveShare = 1.0
    """nucleus kept when evaluating"""
    top_k: Annotated[int, Bound(lambda v: v >= 0, "must not be negative; 0 keeps all tokens")] = 0
    """tokens kept when evaluating; 0 is all"""

    @property
    def further_panels(self) -> tuple[tuple[str, int, bool], ...]:
        """(split, tasks, whether it may be absent) of each further panel; 0 tasks where no number is named."""
        found = []
        for entry in filter(None, map(str.strip, self.also.split(","))):
            split, _, count = entry.removesuffix("?").partition(":")
            if count and not (count.isdigit() and int(count)):
                raise TacitError(f"evaluation.also = {self.also!r}: {entry!r} is neither a split nor SPLIT:TASKS.")
            found.append((split, int(count or 0), entry.endswith("?")))
        return tuple(found)


@dataclass(frozen=True)
class TrainSettings:
    """What holds for every stage."""

    seed: Basic[int] = 0
    """everything random in the run comes from this"""
    tasks: Basic[AtLeastOne] = 4096
    """size of the pool of training tasks"""
    split: str = "train"
    """split the training tasks come from"""
    families: str = ""
    """train and measure only on these families of tasks, comma-separated; empty is all"""
    max_steps: Basic[Count] = 0
    """longest episode when practising; 0 is the world's own limit"""
    max_tokens: Basic[Count] = 0
    """longest completion; 0 is the world's bare action length, or 512 with tags"""
    workers: Count = 0
    """processes to run the world in; 0 runs fast worlds in place and slow ones in 4"""
    workers_at: str = ""
    """where these processes run: empty for this machine, local for a Ray of its own, auto or ray://HOST:PORT for a Ray cluster
    that is there"""
    world_timeout_s: Positive = 60.0
    """a world, or its expert, that does not answer for this long ends its episode"""
    overlap: Annotated[int, Bound(lambda v: v in (0, 1), "must be 0 or 1")] = 0
    """iterations that episodes may be behind the weights: 1 plays the next ones while these are learned from, on an engine
    with sampling servers"""
    checkpoint_every: AtLeastOne = 5
    """iterations between checkpoints (supervised steps count a tenth)"""
    keep: AtLeastOne = 2
    """newest checkpoints kept, beside the best"""
    trajectories: bool = True
    """write every trajectory to the run directory"""
    wandb: str = ""
    """Weights & Biases project to log to as well (needs the wandb extra)"""
    sft: SupervisedSettings = field(default_factory=SupervisedSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    @property
    def family_names(self) -> tuple[str, ...]:
        """`families`, one by one, each once"""
        return tuple(dict.fromkeys(name.strip() for name in self.families.split(",") if name.strip()))
