"""Complementary RL: an actor and an experience extractor that raise each other (Muhtar et al., 2026).

    m ~ retrieve(M, g)                                            half of a group's members are given an entry, half none
    Â_c = (r − mean_c r) / (std_c r + δ)                    (5)   within each half
    M ← π_φ(g, τ, outcome, m): add, update or nothing             every episode is distilled, whatever its outcome
    r̄(m) = mean of ±1 over the episodes m guided
    π_φ by CISPO on r̄(m), against what it said when it wrote m   (3, 7)
    s(m) = −rank − λ log(1 + c(m)) − 1[recent]             (6)   retrieval that does not always hand out the same
    M ← merge(M) every few iterations

What differs from GRPO: how the members of a group are told, within whom they are compared, and a second policy beside it.
`--extraction static` keeps the extractor as it is; `--extraction offline` guides by a bank made beforehand, never written to;
`--extraction none` plays without experience, and is GRPO; `--actor fixed` trains the extractor alone. `--critic` lets the actor
judge its entries (§B.1), `--internalise LR` lets it imitate its guided winners without their notes (§4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from tacit.companions.experience.bank import CAPACITY, Bank
from tacit.companions.experience.companion import GUIDED, Experience, GuidedHalf, make_self_distillation
from tacit.companions.experience.extractor import Extractor, Style
from tacit.companions.experience.files import fill_bank
from tacit.companions.experience.manager import Critic, ExperienceManager, QuerySettings
from tacit.companions.experience.retrieval import (
    Diversity,
    Embedding,
    NgramEmbedding,
    SentenceEmbedding,
    endpoint_embedding_name,
)
from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive, Share
from tacit.core.composition import Part, adds, replaces
from tacit.core.errors import TacitError
from tacit.core.resources import NO_RESOURCES, Base, Resources
from tacit.core.world import Environment
from tacit.credit.halves import within_conditions
from tacit.methods.grpo import GRPO
from tacit.prompts.search_and_ask import SearchAndAsk


@dataclass(frozen=True)
class Complementary(GRPO):
    """GRPO whose agents draw on a bank of experience, and whose extractor learns what is worth keeping."""

    name: ClassVar[str] = "complementary"

    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 leaves it out"""
    extraction: Literal["trained", "static", "offline", "none"] = "trained"
    """the extractor learns (trained), only writes (static), or there is none: then the bank was made beforehand and stays as
    it is (offline), or there is none either, and it is GRPO (none)"""
    bank: str = ""
    """the bank made beforehand: a run, a bank or JSON lines; empty: random episodes, told by the world's own hindsight"""
    beforehand: AtLeastOne = 256
    """how many random episodes such a bank is made of"""
    actor: Literal["trained", "fixed"] = "trained"
    """the actor learns, or stays as it is while the extractor learns (Exp. Only of Table 1)"""
    advantage: Literal["split", "joint"] = "split"
    """compare episodes, and steps where their credit is added, within their half (Eq. 5), or all with all (Figure 3c)"""
    guided: Share = 0.5
    """share of a group's members that are given an entry; 1 is all of them (Figure 3b)"""
    embedding: Literal["ngram", "sentence", "endpoint"] = "ngram"
    """what entries are near by: character n-grams, a sentence encoder, or one behind an OpenAI-compatible endpoint"""
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    """the sentence encoder, where entries are compared by one: a directory or a hub id, or the name it has at the endpoint"""
    embedding_url: str = "http://localhost:8000/v1"
    """the address of that endpoint, up to and including the version"""
    embedding_key: str = "OPENAI_API_KEY"
    """environment variable that holds its key; a server that wants none is asked without one"""
    capacity: AtLeastOne = CAPACITY
    """entries in the bank; the oldest go first"""
    candidates: AtLeastOne = 16
    """nearest entries that are looked at for the one that is handed out"""
    diversity: NotNegative = 0.4
    """λ: what having been handed out before costs an entry"""
    recency: Count = 1
    """iterations within which an entry counts as handed out just now"""
    merge_every: Count = 5
    """iterations between merges of the bank; 0 never merges"""
    extractor_style: Style = "json"
    """how the extractor writes its operations: json, or terse lines for tiny ones"""
    extractor_tokens: AtLeastOne = 1024
    """its longest answer"""
    extractor_batch: AtLeastOne = 64
    """entries it is trained on at once"""
    extractor_lr: NotNegative = 1e-6
    """its learning rate"""
    extractor_clip: Positive = 0.1
    """ε of its importance weights"""
    extractor_decay: NotNegative = 0.5
    """α: how an entry that was trained on before counts less"""
    extractor_cooldown: Count = 1
    """δ: iterations within which an entry is not trained on again"""
    search_and_ask: Literal["refined", "plain", "none"] = "refined"
    """guided agents may ask in mid-episode: the extractor refines what is found, it is told as it is, or nobody asks"""
    query_batch: AtLeastOne = 16
    """B: questions that are answered together"""
    query_wait: NotNegative = 0.001
    """t_max: seconds that a question waits for others, in the background"""
    search_workers: AtLeastOne = 4
    """W: threads that answer, in the background"""
    critic: bool = False
    """ask the actor about each entry before it plays: accept, refine or reject (§B.1)"""
    internalise: NotNegative = 0.0
    """learning rate at which guided winners are imitated without their note (self-distillation, §4.3); 0 leaves it out"""
    internalise_every: AtLeastOne = 1
    """iterations between such steps"""
    background: bool = False
    """distil while episodes are played: faster, and no longer the same every time"""

    def fit_to_model(self, base: Base, said: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """A tiny extractor writes lines, not JSON, and not many of them; a tiny actor has never seen anybody ask."""
        settings, notes = super().fit_to_model(base, said)
        wanted: dict[str, Any] = (
            {"extractor_style": "terse", "extractor_tokens": 64, "search_and_ask": "none"} if base.small else {}
        )
        own = {name: value for name, value in wanted.items() if name not in said and getattr(self, name) != value}
        if not own:
            return settings, notes
        told = ", ".join(f"{name} = {value}" for name, value in own.items())
        return replace(settings, **own), (*notes, f"for an actor and an extractor of that size, {told}")

    def entry_warnings(self, policies: frozenset[str]) -> tuple[str, ...]:
        lines = "sft.entries shows entries written in lines, and the extractor is asked for JSON, which it is not shown; add "
        other = "sft.entries shows entries to the actor; the extractor of [policies.extractor] begins as it is"
        asked = (f"{lines}--extractor-style terse",) if self.extractor_style == "json" else ()
        return (*asked, *((other,) if "extractor" in policies else ()))

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.actor == "fixed" and self.extraction != "trained":
            raise TacitError(f"actor = fixed with extraction = {self.extraction}: nothing would learn. Leave one of them out.")
        if self.actor == "fixed" and self.internalise:
            raise TacitError("actor = fixed with internalise: the actor would learn after all. Leave one of them out.")
        if self.extraction == "none":
            return ()
        self.check_halves()
        asked = QuerySettings(self.search_and_ask == "refined", self.query_batch, self.query_wait, self.search_workers)
        critic = Critic(self.extractor_style, self.extractor_tokens, self.schedule.temperature) if self.critic else None
        writes = self.extraction != "offline"
        made = partial(Experience, self.manager(world, resources), self.merge_every, asked, writes, critic)
        experience = resources.shared("experience", self.shared(), made)
        may_ask = partial(SearchAndAsk, ask=experience.ask, conditions=(GUIDED,), brief=self.prompt.wording == "terse")
        inner = make_self_distillation(self.context(world), self.internalise, self.internalise_every)
        still = [replaces("losses", role) for role in ("surrogate", "KL", "entropy")] + [replaces("columns", "reference")]
        return (
            replaces("conditions", "how it is told", GuidedHalf(experience, self.guided)),
            adds("companions", "experience", experience),
            *([] if self.search_and_ask == "none" else [adds("context", "somebody to ask", may_ask)]),
            *([adds("companions", "internalising", inner)] if self.internalise else ()),
            *([adds("comparison", "halves", within_conditions)] if self.advantage == "split" else ()),  # Eq. 5
            *(still if self.actor == "fixed" else ()),
        )

    def check_halves(self) -> None:
        """Within a half of one nobody can be compared: its advantage is 0, always."""
        size = self.schedule.group_size
        guided = round(size * self.guided)
        learns = self.schedule.iterations and self.actor == "trained" and self.advantage == "split"
        if learns and 1 in (guided, size - guided):
            raise TacitError(
                f"group_size = {size} with guided = {self.guided:g} leaves one of them alone in its half, with nobody "
                "to be compared with, so that it teaches nothing: take a larger --group-size (4 or more), or --advantage joint."
            )

    def shared(self) -> tuple[Any, ...]:
        """The settings of what all worlds of a run have together: bank, extractor and what is between them."""
        names = {"extraction", "embedding", "encoder", "capacity", "candidates", "diversity", "recency", "merge_every"}
        names |= {"embedding_url", "embedding_key"}
        names |= {"bank", "beforehand", "critic", "search_and_ask", "query_batch", "query_wait", "search_workers", "background"}
        return tuple((n, value) for n, value in vars(self).items() if n in names or n.startswith("extractor_"))

    def manager(self, world: Environment, resources: Resources):
        """A way to bank, extractor and what is between them: opened when the first episode asks."""
        offline = self.extraction == "offline"
        policy = NO_RESOURCES.policy("extractor") if offline else resources.policy("extractor")
        if self.extraction == "trained":
            resources.check_learns(
                "extractor", "It can only write: add --extraction static, or name a model that is trained here."
            )
        place = resources.directory("experience") / "bank.sqlite"
        embedding = self.build_embedding(resources)

        def opened() -> ExperienceManager:
            extractor = Extractor(
                policy,
                self.extractor_style,
                max_tokens=self.extractor_tokens,
                clip=self.extractor_clip,
                lr=self.extractor_lr,
                batch=self.extractor_batch,
                decay=self.extractor_decay,
                cooldown=self.extractor_cooldown,
                trained=self.extraction == "trained",
            )
            # built only to be looked at (no resources), it must not touch what lies in some directory of that name
            bank = Bank(None if resources is NO_RESOURCES else place, embedding.name, embedding.dimensions, self.capacity)
            bank.clear()  # a run killed before its first checkpoint begins again; from one on, the bank comes back with it
            if offline:
                fill_bank(bank, embedding, world, self.bank, self.beforehand)
            return ExperienceManager(
                bank, embedding, extractor, Diversity(self.candidates, self.diversity, self.recency), self.background
            )

        return opened

    def build_embedding(self, resources: Resources) -> Embedding:
        if self.embedding == "sentence":
            return SentenceEmbedding(self.encoder, resources.sentences(self.encoder))
        if self.embedding == "endpoint":
            served = resources.served_sentences(self.encoder, self.embedding_url, self.embedding_key)
            return SentenceEmbedding(endpoint_embedding_name(self.encoder), served)
        return NgramEmbedding()
