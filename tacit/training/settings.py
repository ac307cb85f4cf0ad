"""Settings of a run that do not depend on the method. The string under a field is its documentation and its `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from tacit.core.bounds import AtLeastOne, Basic, Bound, Count, NotNegative, Positive, PositiveShare, Share
from tacit.core.errors import TacitError


@dataclass(frozen=True)
class SupervisedSettings:
    """Imitation of the world's expert or of recorded episodes, before RL."""

    steps: Basic[Count] = 0
    """optimizer steps; 0 skips the stage, unless `epochs` is set"""
    epochs: Basic[NotNegative] = 0.0
    """passes over the demonstrated turns, instead of `steps`; 3 is three epochs"""
    batch: Basic[AtLeastOne] = 64
    """demonstrated turns per step"""
    tasks: Basic[AtLeastOne] = 1000
    """training tasks the expert plays, or recorded episodes to read"""
    lr: Basic[NotNegative] = 1e-3
    """peak learning rate; warm-up, then cosine to zero. The default is for policies of a million parameters; use 1e-4 for a
    language model"""
    warmup: Share = 0.1
    """share of the steps with a rising learning rate"""
    expert: str = ""
    """the world's expert, to imitate or, as the agent `expert`, to evaluate; empty is the first"""
    noise: Annotated[float, Bound(lambda v: 0 <= v < 1, "must be at least 0 and below 1")] = 0.0
    """share of demonstrated turns replaced by a random action, to demonstrate recoveries; random actions are not imitated. Use
    it if the policy does not recover from mistakes"""
    renamed: Count = 0
    """further copies of each demonstrated turn with other names and numbers, consistently in prompt and action, so that the
    policy copies names instead of memorizing them; for worlds with numbered names, such as alfworld"""
    questions: Count = 0
    """episodes of random play with questions to answer during imitation, as in the pretraining of `tiny-base`; only for
    small models, which otherwise forget how to read"""
    noted: Count = 0
    """further demonstrations with a hindsight note in the prompt; only for policies too small to use notes without examples"""
    step_notes: Count = 0
    """further demonstrations of critical steps with a hindsight note; only for policies too small to use notes without
    examples"""
    entries: Count = 0
    """demonstrations of writing experience entries, in the extractor's prompts; only for small extractors, which then start
    from these weights unless [policies] says otherwise"""
    mismatched: Share = 0.0
    """share of these demonstrations (`noted`, `step_notes`, `entries`) whose note or entry is of another episode, so that
    RL can still improve their use"""
    from_: Basic[str] = ""
    """file of recorded episodes to imitate instead of an expert: JSON lines, or a run's trajectories/*.jsonl.gz"""

    @property
    def imitates(self) -> bool:
        return bool(self.epochs or self.steps)

    def resolve_epochs(self, turns: int) -> SupervisedSettings:
        """The settings with the `steps` for this many demonstrated turns, if `epochs` is set. Drops incomplete batches."""
        per_epoch = max(1, turns // self.batch)
        return replace(self, steps=max(1, round(self.epochs * per_epoch))) if self.epochs else self


@dataclass(frozen=True)
class EvaluationSettings:
    """The fixed panel a run is evaluated on."""

    split: Basic[str] = ""
    """split of the panel; empty is the world's default: test, or unseen houses"""
    tasks: Basic[Count] = 0
    """tasks on the panel; 0 is 128, or all of a published split"""
    panel: str = ""
    """file of tasks (.json or .jsonl) to evaluate on, instead of `split` and `tasks`"""
    also: str = ""
    """further splits to evaluate at the end of each stage, comma-separated: SPLIT or SPLIT:TASKS; SPLIT? is skipped if its
    data are missing"""
    repeats: AtLeastOne = 1
    """episodes per task"""
    every: Basic[Count] = 5
    """iterations between evaluations; 0 evaluates only after each stage"""
    patience: Count = 0
    """stop RL after this many evaluations in a row without improvement; 0 never stops"""
    untrained: bool = True
    """also evaluate before training"""
    temperature: Basic[Annotated[float, Bound(lambda v: v >= 0, "must not be negative; 0 is greedy")]] = 0.4
    """sampling temperature of evaluations"""
    max_steps: Count = 0
    """longest episode of evaluations; 0 is the world's limit"""
    top_p: PositiveShare = 1.0
    """top-p of evaluations"""
    top_k: Annotated[int, Bound(lambda v: v >= 0, "must not be negative; 0 keeps all tokens")] = 0
    """top-k of evaluations; 0 is all tokens"""

    @property
    def further_panels(self) -> tuple[tuple[str, int, bool], ...]:
        """(split, tasks or 0, may be missing) of each panel in `also`."""
        panels = []
        for entry in filter(None, map(str.strip, self.also.split(","))):
            split, _, count = entry.removesuffix("?").partition(":")
            if count and not (count.isdigit() and int(count)):
                raise TacitError(f"evaluation.also = {self.also!r}: {entry!r} must be SPLIT, SPLIT? or SPLIT:TASKS.")
            panels.append((split, int(count or 0), entry.endswith("?")))
        return tuple(panels)


@dataclass(frozen=True)
class TrainSettings:
    seed: Basic[Annotated[int, Bound(lambda v: 0 <= v < 2**63, "must be between 0 and 2^63 − 1")]] = 0
    """random seed of the run"""
    tasks: Basic[AtLeastOne] = 4096
    """number of training tasks to draw from"""
    split: str = "train"
    """split of the training tasks"""
    families: str = ""
    """train and evaluate only on these task families, comma-separated; empty is all"""
    max_steps: Basic[Count] = 0
    """longest episode in training; 0 is the world's limit"""
    max_tokens: Basic[Count] = 0
    """longest completion; 0 is the world's action length for bare actions, else 512"""
    workers: Count = 0
    """processes that run the world; 0 runs fast worlds in this process and slow ones in four others"""
    workers_at: str = ""
    """where these processes run: empty is this machine; local is a new Ray cluster on it; auto or ray://HOST:PORT is a running
    one"""
    world_timeout_s: Positive = 60.0
    """seconds after which an episode ends if its world or expert does not answer"""
    overlap: Annotated[int, Bound(lambda v: v in (0, 1), "must be 0 or 1")] = 0
    """1 collects the next rollouts during the update, one version behind; needs an engine with sampling servers"""
    checkpoint_every: AtLeastOne = 5
    """iterations between checkpoints (ten imitation steps count as one)"""
    keep: AtLeastOne = 2
    """newest checkpoints to keep, besides the best"""
    trajectories: bool = True
    """write every trajectory to the run directory"""
    wandb: str = ""
    """also log to this Weights & Biases project (needs the wandb extra)"""
    sft: SupervisedSettings = field(default_factory=SupervisedSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    @property
    def family_names(self) -> tuple[str, ...]:
        """`families` as a tuple, without duplicates."""
        return tuple(dict.fromkeys(name.strip() for name in self.families.split(",") if name.strip()))
