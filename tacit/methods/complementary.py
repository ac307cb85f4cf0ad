"""Complementary RL (Muhtar et al., 2026): an actor and an experience extractor that train each other.

    m ~ retrieve(M, g)                                            half of a group reads an entry m of the bank M, half none
    s(m) = −rank − λ log(1 + c(m)) − 1[recent]              (6)   retrieval score; c(m): how often m was retrieved
    Â_c = (r − mean_c r) / (std_c r + δ)                    (5)   within each half c
    M ← π_φ(g, τ, outcome, m): add, update or nothing             the extractor π_φ distills every episode
    r̄(m) = mean of ±1 over the episodes that m guided
    π_φ by CISPO on r̄(m), relative to π_φ when it wrote m      (3, 7)
    M ← merge(M) every few iterations

What differs from GRPO: entries in the prompts, credit within each half, and a second policy.

    --extraction static    the extractor writes but is not trained
    --extraction offline   a fixed bank made beforehand
    --extraction none      no bank: GRPO
    --actor fixed          trains the extractor only
    --critic               the actor reviews its entry first (§B.1)
    --internalise LR       imitates guided successes without their entry (§4.3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from tacit.companions.experience.bank import CAPACITY, Bank
from tacit.companions.experience.companion import GUIDED, Experience, GuidedHalf, make_self_distillation
from tacit.companions.experience.extractor import Extractor, ExtractorSettings
from tacit.companions.experience.files import fill_bank
from tacit.companions.experience.manager import Critic, ExperienceManager, QuerySettings
from tacit.companions.experience.retrieval import ENDPOINT, Diversity, Embedding, NgramEmbedding, Scope, SentenceEmbedding
from tacit.core.bounds import AtLeastOne, Count, NotNegative, Share
from tacit.core.errors import TacitError
from tacit.core.method import NO_RESOURCES, Base, Part, Resources, adds, replaces
from tacit.core.world import Environment
from tacit.credit.episode import within_conditions
from tacit.methods.grpo import GRPO
from tacit.prompts.search_and_ask import SearchAndAsk


@dataclass(frozen=True)
class Complementary(GRPO):
    """GRPO with a bank of experience entries in the prompt, written by an extractor that is trained too."""

    name: ClassVar[str] = "complementary"

    kl: NotNegative = 0.0
    """β of the KL to the reference policy; 0 turns it off"""
    extraction: Literal["trained", "static", "offline", "none"] = "trained"
    """trained: train the extractor; static: it only writes; offline: use a fixed bank made beforehand; none: no bank (GRPO)"""
    bank: str = ""
    """offline bank: a run, a bank file or JSON lines; empty: made from random episodes with the world's rule-based hindsight"""
    beforehand: AtLeastOne = 256
    """number of random episodes for an offline bank"""
    actor: Literal["trained", "fixed"] = "trained"
    """trained, or fixed: train the extractor only (Exp. Only in Table 1)"""
    advantage: Literal["split", "joint"] = "split"
    """compute advantages (and step-level credit) within each half (split, Eq. 5) or over the whole group (joint, Figure 3c)"""
    guided: Share = 0.5
    """share of a group's episodes that read an entry; 1 is all of them (Figure 3b)"""
    embedding: Literal["ngram", "sentence", "endpoint"] = "ngram"
    """embedding of entries: character n-grams, a sentence encoder, or one behind an OpenAI-compatible endpoint"""
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2"
    """sentence encoder: a directory, a hub id, or its name at the endpoint"""
    embedding_url: str = "http://localhost:8000/v1"
    """base URL of the embedding endpoint, including the version"""
    embedding_key: str = "OPENAI_API_KEY"
    """environment variable with its API key; unset: requests carry no key"""
    capacity: AtLeastOne = CAPACITY
    """most entries in the bank; the oldest are dropped first"""
    candidates: AtLeastOne = 16
    """nearest entries considered per retrieval"""
    diversity: NotNegative = 0.4
    """λ: penalty on entries that were retrieved often"""
    recency: Count = 3
    """iterations for which a retrieved entry counts as recent"""
    demotion: Share = 0.5
    """probability of skipping a recent entry in favor of the next best"""
    retrieval: Literal["nearest", "shuffled"] = "nearest"
    """nearest entries, or shuffled: entries of random tasks, a control for their content"""
    search_scope: Scope = "world"
    """entries that retrieval searches: the whole bank, those of the same world, or of the same family"""
    merge_every: Count = 5
    """iterations between merges of the bank; 0 never merges"""
    merge_scope: Scope = "world"
    """entries that may be merged with each other: the whole bank, those of one world, or of one family"""
    extractor: ExtractorSettings = field(default_factory=ExtractorSettings)
    search_and_ask: Literal["refined", "plain", "none"] = "refined"
    """guided agents may search the bank mid-episode: refined by the extractor, plain (the entry as it is), or none"""
    questions: Count = 2
    """most questions per episode; 0 sets no limit"""
    query_batch: AtLeastOne = 16
    """B: questions answered in one batch"""
    query_wait: NotNegative = 0.001
    """t_max: seconds a question waits for a full batch, with background = true"""
    search_workers: AtLeastOne = 4
    """W: threads that answer questions, with background = true"""
    critic: bool = False
    """let the actor accept, refine or reject its entry before each episode (§B.1)"""
    internalise: NotNegative = 0.0
    """learning rate for imitating guided successes without their entry (self-distillation, §4.3); 0 turns it off"""
    internalise_every: AtLeastOne = 1
    """iterations between these updates"""
    background: bool = False
    """distill, train the extractor and merge during rollouts and the actor's updates: faster, but not reproducible"""

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        """Tiny extractors write short terse lines instead of JSON; tiny actors cannot ask questions."""
        settings, notes = super().fit_to_model(base, explicit)
        if not base.small:
            return settings, notes
        changes: list[str] = []
        extractor, search_and_ask = self.extractor, self.search_and_ask
        if "extractor.style" not in explicit and extractor.style != "terse":
            extractor = replace(extractor, style="terse")
            changes.append("extractor.style = terse")
        if "extractor.tokens" not in explicit and extractor.tokens != 64:
            extractor = replace(extractor, tokens=64)
            changes.append("extractor.tokens = 64")
        if "search_and_ask" not in explicit and search_and_ask != "none":
            search_and_ask = "none"
            changes.append("search_and_ask = none")
        if not changes:
            return settings, notes
        note = f"for an actor and an extractor of that size, {', '.join(changes)}"
        return replace(settings, extractor=extractor, search_and_ask=search_and_ask), (*notes, note)

    def entry_warnings(self, policies: frozenset[str]) -> tuple[str, ...]:
        warnings = []
        if self.extractor.style == "json":
            warnings.append(
                "sft.entries demonstrates terse lines, but the extractor is asked for JSON; add --extractor.style terse"
            )
        if "extractor" in policies:
            warnings.append("sft.entries trains the actor only; the extractor of [policies.extractor] starts untrained")
        return tuple(warnings)

    def changes(self, world: Environment, resources: Resources) -> Sequence[Part]:
        if self.actor == "fixed" and self.extraction != "trained":
            raise TacitError(
                f"actor = fixed with extraction = {self.extraction}: nothing would be trained. Remove one of them."
            )
        if self.actor == "fixed" and self.internalise:
            raise TacitError("actor = fixed with internalise: internalise trains the actor. Remove one of them.")
        if self.extraction == "none":
            return ()
        self.check_halves()
        queries = QuerySettings(self.search_and_ask == "refined", self.query_batch, self.query_wait, self.search_workers)
        critic = Critic(self.extractor.style, self.extractor.tokens, self.schedule.temperature) if self.critic else None
        writes = self.extraction != "offline"
        make = partial(Experience, self.manager(world, resources), self.merge_every, queries, writes, critic)
        experience = resources.shared("experience", self.shared(), make)
        brief = self.prompt.wording == "terse"
        parts = [
            replaces("conditions", "episode conditions", GuidedHalf(experience, self.guided)),
            adds("companions", "experience", experience),
        ]
        if self.search_and_ask != "none":
            asking = partial(SearchAndAsk, ask=experience.ask, conditions=(GUIDED,), brief=brief, most=self.questions)
            parts.append(adds("context", "search and ask", asking))
        if self.internalise:
            distillation = make_self_distillation(self.context(world), self.internalise, self.internalise_every)
            parts.append(adds("companions", "internalising", distillation))
        if self.advantage == "split":
            parts.append(adds("comparison", "halves", within_conditions))  # Eq. 5
        if self.actor == "fixed":
            parts += [replaces("losses", role) for role in ("surrogate", "KL", "entropy")]
            parts.append(replaces("columns", "reference"))
        return tuple(parts)

    def check_halves(self) -> None:
        """Raise if a half has a single episode: its advantage would always be 0."""
        size = self.schedule.group_size
        guided = round(size * self.guided)
        learns = self.schedule.iterations and self.actor == "trained" and self.advantage == "split"
        if learns and 1 in (guided, size - guided):
            raise TacitError(
                f"group_size = {size} with guided = {self.guided:g} leaves one episode alone in its half, so its advantage is "
                "always 0. Use --group-size 4 or more, or --advantage joint."
            )

    def shared(self) -> tuple[Any, ...]:
        """Settings of the bank and extractor, which all worlds of a run share."""
        names = {"extraction", "embedding", "encoder", "capacity", "candidates", "diversity", "recency", "merge_every"}
        names |= {"embedding_url", "embedding_key", "demotion", "retrieval", "search_scope", "merge_scope", "extractor"}
        names |= {"bank", "beforehand", "critic", "search_and_ask", "query_batch", "query_wait", "search_workers", "background"}
        return tuple((n, value) for n, value in vars(self).items() if n in names)

    def manager(self, world: Environment, resources: Resources):
        """A function that opens the bank and the extractor. It is called when the first episode needs them."""
        offline = self.extraction == "offline"
        policy = NO_RESOURCES.policy("extractor") if offline else resources.policy("extractor")
        if self.extraction == "trained":
            resources.check_learns("extractor", "Add --extraction static, or name a model that is trained here.")
        path = resources.directory("experience") / "bank.sqlite"
        embedding = self.build_embedding(resources)

        def open_manager() -> ExperienceManager:
            extractor = Extractor(policy, self.extractor, trained=self.extraction == "trained")
            # Without resources the method is only inspected: keep the bank in memory.
            bank = Bank(None if resources is NO_RESOURCES else path, embedding.name, embedding.dimensions, self.capacity)
            bank.clear()  # a run killed before its first checkpoint starts over; checkpoints restore the bank
            if offline:
                fill_bank(bank, embedding, world, self.bank, self.beforehand)
            shuffled = self.retrieval == "shuffled"
            rule = (self.candidates, self.diversity, self.recency, self.demotion, self.search_scope, shuffled)
            return ExperienceManager(
                bank, embedding, extractor, Diversity(*rule), self.background, merge_scope=self.merge_scope
            )

        return open_manager

    def build_embedding(self, resources: Resources) -> Embedding:
        if self.embedding == "sentence":
            return SentenceEmbedding(self.encoder, resources.sentences(self.encoder))
        if self.embedding == "endpoint":
            served = resources.sentences(self.encoder, self.embedding_url, self.embedding_key)
            return SentenceEmbedding(f"{self.encoder}{ENDPOINT}", served)
        return NgramEmbedding()
