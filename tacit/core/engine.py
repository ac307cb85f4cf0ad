"""What an engine is: a name, what it can do, the settings it takes, and a way to load a policy. Found by name or entry point.

capability      what a policy then has                          asked for by
sampling        Sampler                                         everybody
learning        Learner                                         everybody who trains
scoring         Scorer.logprobs                                 KL, skill shift
reference       reference(), freeze_reference()                 KL
distributions   Scorer.distributions                            distillation
hidden_states   Encoder, and `layer` in sampling                BiPACE
values          Critic, and `values` in updates                 PPO
entropy, logits what losses may read during an update           entropy bonus
teacher         its own distribution under another prompt       full-vocabulary distillation
adapters        adapter(name)                                   skill modules
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.protocols import Policy

SAMPLING, LEARNING, SCORING, REFERENCE = "sampling", "learning", "scoring", "reference"
DISTRIBUTIONS, HIDDEN_STATES, VALUES, ADAPTERS = "distributions", "hidden_states", "values", "adapters"
ENTROPY, LOGITS, TEACHER = "entropy", "logits", "teacher"
CAPABILITIES = (
    SAMPLING, LEARNING, SCORING, REFERENCE, DISTRIBUTIONS, HIDDEN_STATES, VALUES, ADAPTERS, ENTROPY, LOGITS, TEACHER,
)  # fmt: skip
DURING_UPDATES = frozenset({ENTROPY, VALUES, LOGITS, TEACHER})
"""what an engine can compute beside log-probabilities during an update"""


@dataclass(frozen=True)
class ModelSource:
    """Which model to load, and what a model made from scratch is made with."""

    name: str
    """a packaged base, a tiny size, a directory or a hub id"""
    seed: int = 0
    """of first weights and fresh adapters"""
    texts: Callable[[], Sequence[str]] | None = None
    """the worlds' own text, for a tokenizer from scratch"""
    sizes: Any = None
    """of a tiny model, where they are not the usual ones"""


@dataclass(frozen=True)
class Engine:
    name: str
    summary: str
    capabilities: frozenset[str]
    settings: type[Any]
    """a frozen dataclass, whose fields become `--engine.FIELD`; reading it must import nothing heavy"""
    load: Callable[[ModelSource, Any], Policy]
    """(model, settings) -> a policy; only here may anything heavy be imported"""
    elsewhere: bool = False
    """its models are on other machines and go by names that nothing here can check"""
    fit: Callable[[Any, frozenset[str]], tuple[Any, tuple[str, ...]]] | None = None
    """(settings, what the method needs) -> the settings with what that takes turned on, and notes that say so"""
    can_hold: Callable[[Any], bool] | None = None
    """whether with these settings its policies are a HeldSampler, which overlap takes; None: that is seen when one is loaded"""

    def __post_init__(self) -> None:
        strange = sorted(self.capabilities - set(CAPABILITIES))
        if strange:
            raise TacitError(
                f"engine {self.name!r} declares {strange}, which no method asks for. Known: {', '.join(CAPABILITIES)}."
            )

    def refuse_unless_able(self, method: str, needs: frozenset[str], others: Mapping[str, Engine]) -> None:
        """An error that names what is missing and the engines that would do, before anything is loaded."""
        missing = sorted(needs - self.capabilities)
        if missing:
            able = [name for name, other in others.items() if needs <= other.capabilities]
            remedy = f"Engines that can: {', '.join(able)} (--engine NAME)." if able else "No engine here can."
            raise TacitError(f"{method!r} needs {', '.join(missing)}, which engine {self.name!r} cannot do. {remedy}")
