"""Regression tests for faults that reviews found in the experience of Complementary RL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedPolicy, make_group

from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Bank, Call, Origin, Usage, remove_by_hand
from tacit.companions.experience.extractor import Extractor, ExtractorSettings, Sample, render_distill_prompt
from tacit.companions.experience.manager import DistillRequest, ExperienceManager, QueryAnswerer, QuerySettings
from tacit.companions.experience.retrieval import CachedEmbedding, Diversity, NgramEmbedding, Query, retrieve
from tacit.core.errors import TacitError
from tacit.core.method import Companion
from tacit.core.types import Condition, IterationInfo, Observation, Task
from tacit.methods import get_method
from tacit.prompts.search_and_ask import SearchAndAsk, SearchResult
from tacit.runs.directory import Checkpoints
from tacit.worlds import get_environment

EMBED = NgramEmbedding(3, 64)
CALL = Call(np.array([1]), np.array([2, 3]), np.array([-0.5, -0.25], np.float32))
TASK = Task("here", "here/0", "only", "train", 0, "go")


def bank_of(path: Path | None, texts=(), capacity=100, world="") -> Bank:
    bank = Bank(path, EMBED.name, EMBED.dimensions, capacity)
    for text in texts:
        bank.add(text, EMBED([text])[0], Origin(world=world))
    return bank


# Eq. 7


def test_entry_used_every_iteration_is_trained_after_each_cooldown():
    extractor = Extractor(lambda: ScriptedPolicy(lambda prompt, seed: ""), ExtractorSettings(batch=2, cooldown=3))
    usage, at = {1: Usage(), 2: Usage()}, list[int]()
    for step in range(1, 8):
        extractor.add_sample(Sample(1, 1.0, CALL))
        extractor.add_sample(Sample(2, -1.0, CALL))
        for entry in extractor.learn(usage.__getitem__, step)[1]:
            usage[entry] = Usage(trained=usage[entry].trained + 1, last_trained=step)
            at += [step] if entry == 1 else []
    assert at == [1, 4, 7], "before, it was trained once and starved"


def test_default_cooldown_gives_zero_weight_to_recent_entries():
    policy = ScriptedPolicy(lambda prompt, seed: "")
    extractor = Extractor(lambda: policy, replace(ExtractorSettings(), batch=2))
    for entry, reward in ((1, 1.0), (2, -1.0)):
        extractor.add_sample(Sample(entry, reward, CALL))
    trained = extractor.learn({1: Usage(trained=1, last_trained=4), 2: Usage()}.__getitem__, 5)[1]
    assert trained == [2] and [a[0] for a in policy.updates[0][0].advantages] == [0.0, -1.0]


# Unfinished answers


class Cut(ScriptedPolicy):
    """Every answer is cut at the token limit."""

    def _complete(self, prompt, seed):
        return replace(super()._complete(prompt, seed), finish="length")


class Thinking(ScriptedPolicy):
    """The chat template opens the thought."""

    def encode_prompt(self, text):
        return super().encode_prompt(f"{text}\n<think>\n")


DRAFT = '{"operations": [{"op": "add", "text": "look first"}]}'


@pytest.mark.parametrize(
    ("policy", "style", "answer", "refused"),
    [
        (Cut, "json", f"<think> perhaps {DRAFT} but", True),
        (Cut, "json", f"perhaps {DRAFT} but", True),
        (Cut, "terse", "add: look behind the", True),
        (Thinking, "json", f"perhaps {DRAFT} but", True),
        (Thinking, "json", f"hm</think>{DRAFT}", False),
        (ScriptedPolicy, "json", f"<think>hm</think>{DRAFT}", False),
        (ScriptedPolicy, "terse", "add: look behind the door", False),
    ],
)
def test_only_finished_answers_become_entries(policy, style, answer, refused):
    model = policy(lambda prompt, seed: answer)
    manager = ExperienceManager(bank_of(None), EMBED, Extractor(lambda: model, ExtractorSettings(style=style)))
    episode = make_group([[1]], success=[True]).trajectories[0]
    manager.submit(DistillRequest(episode, None, IterationInfo(0, 1), "episode"))
    manager.work()
    assert (len(manager.bank), manager.counts["refused"]) == ((0, 1) if refused else (1, 0)), manager.last_refusal
    if refused:
        assert "cut off after" in manager.last_refusal or "never ended" in manager.last_refusal


# Lengths: entries and episodes are not cut


def test_prompts_contain_entries_of_maximum_length_uncut():
    world = get_environment("countdown")
    entry = "x" * (MAX_ENTRY_CHARS - 4) + " END"
    context, task = get_method("grpo")().context(world), world.tasks("train", 1, 0)[0]
    note, seen = Condition("experience", entry, "1"), world.make().reset(task)
    assert entry in context.begin(task, note).read(seen).text

    class Answered:
        def done(self):
            return True

        def result(self):
            return SearchResult(entry, 1)

    reader = SearchAndAsk(context, lambda question, task: Answered(), ("experience",)).begin(task, note)
    reader.read(seen)
    reader.ask("search_and_ask what now?").result()
    assert reader.read(seen).text.count(entry) == 2, "at the beginning, and as an answer"


@pytest.mark.parametrize("style", ["json", "terse"])
def test_distill_prompt_contains_the_whole_episode(style):
    (episode,) = make_group([[1, 1, 1]]).trajectories
    long, first, asking, last = "o" * 900 + " end", *episode.steps
    first = replace(first, observation=Observation(long), thought="I wonder")
    asking = replace(asking, action="search_and_ask where?", answer="behind the door")
    wrote = replace(last, valid=False, completion=replace(last.completion, text="I do not know how"))
    episode = replace(
        episode, steps=(replace(first, observation=Observation("a")), asking, wrote, first), final=Observation("over")
    )
    prompt = render_distill_prompt(episode, "", style, 10_000)
    assert long in prompt and "behind the door" in prompt and "over" in prompt
    assert style == "terse" or ("I wonder" in prompt and "I do not know how" in prompt)


def test_too_long_episode_is_shortened_instead_of_refused():
    (episode,) = make_group([[1] * 60]).trajectories
    steps = tuple(replace(step, observation=Observation("a b c d e f g h i j")) for step in episode.steps)
    policy = ScriptedPolicy(lambda prompt, seed: "return", context_limit=400)
    extractor = Extractor(lambda: policy, ExtractorSettings(style="terse", tokens=10_000))
    ((_, _, problem),) = extractor.distill([(replace(episode, steps=steps), "")], IterationInfo(), "x")
    assert not problem and policy.samplings[0].max_tokens == 200, "half of the context"


# Retrieval


@pytest.mark.parametrize(("size", "before", "now"), [(1, 0.85, 0.5), (4, 0.6, 0.5)])
def test_default_diversity_limits_retrievals_of_one_entry(size, before, now):
    def share(diversity: Diversity) -> float:
        texts = [f"open the red box number {i} and look" for i in range(32)]
        bank, found, embed = bank_of(None, texts), Counter[int](), CachedEmbedding(EMBED)
        for step in range(640 // size):
            queries = [Query(texts[7], seed=step * size + i) for i in range(size)]
            found.update(entry.id for entry in retrieve(bank, embed, queries, step + 1, diversity))
        return found.most_common(1)[0][1] / 640

    assert share(Diversity(recency=1, demotion=0.0)) > before, "by Eq. 6 alone"
    settings = get_method("complementary")()
    assert share(Diversity(settings.candidates, settings.diversity, settings.recency, settings.demotion)) <= now


def test_search_is_limited_to_its_world_by_default():
    bank = bank_of(None, ["open the red box"], world="there")
    bank.add("paint a wall", EMBED(["paint a wall"])[0], Origin(world="here", family="easy"))
    bank.add("quux", EMBED(["quux"])[0], Origin())
    query = Query("open the red box or paint a wall", "here", "hard")

    def found(**settings):
        return next(e and e.text for e in retrieve(bank, EMBED, [query], 1, Diversity(**settings), count=False))

    assert found() == "paint a wall" and found(scope="bank") == "open the red box" and found(scope="family") == "quux"
    assert retrieve(bank_of(None, ["x"], world="there"), EMBED, [query], 1, Diversity()) == [None]


def test_shuffled_retrieval_is_random_but_deterministic():
    bank = bank_of(None, [f"entry {i}" for i in range(20)])
    queries = [Query("entry 3", seed=i) for i in range(40)]
    found, again = (retrieve(bank, EMBED, queries, 1, Diversity(shuffled=True), count=False) for _ in range(2))
    assert found == again and len({entry.id for entry in found}) > 10


def test_merging_is_limited_to_each_world_by_default():
    def merged(scope) -> list[list[str]]:
        policy = ScriptedPolicy(lambda prompt, seed: "entry: one")
        bank = bank_of(None, ["a1", "a2"], world="a")
        for text in ("b1", "b2"):
            bank.add(text, EMBED([text])[0], Origin(world="b"))
        extractor = Extractor(lambda: policy, ExtractorSettings(style="terse"))
        ExperienceManager(bank, EMBED, extractor, merge_scope=scope).merge(IterationInfo(0, 5))
        return [line.split() for call in policy.calls for line in [call[0][0].replace("entry:", "").replace("merged:", "")]]

    assert merged("world") == [["a1", "a2"], ["b1", "b2"]] and merged("bank") == [["a1", "a2", "b1", "b2"]]


# The background track


class WaitingPolicy(ScriptedPolicy):
    """Samples and updates wait for their events."""

    def __init__(self, answer) -> None:
        super().__init__(answer)
        self.sampling, self.updating = threading.Event(), threading.Event()
        self.update_started = threading.Event()
        self.waiting = 0

    def sample(self, requests, sampling, hidden=None):
        self.waiting = len(requests)
        assert self.sampling.wait(20)
        return super().sample(requests, sampling, hidden)

    def update(self, batch, losses, lr):
        self.update_started.set()
        assert self.updating.wait(20)
        return super().update(batch, losses, lr)


class Pinned(WaitingPolicy):
    """A gated policy that can sample from pinned weights."""

    pinned = 0

    @contextmanager
    def pin_weights(self):
        self.pinned += 1
        yield


def in_background(policy, texts=("one entry", "another entry"), **settings) -> ExperienceManager:
    extractor = Extractor(lambda: policy, ExtractorSettings(style="terse", batch=2, **settings))
    return ExperienceManager(bank_of(None, texts, world="here"), EMBED, extractor, background=True)


def until(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_questions_of_several_workers_are_answered_in_one_batch():
    """Before, 64 questions with B = 16 and W = 4 took four sequential calls."""
    policy = WaitingPolicy(lambda prompt, seed: "advice")
    manager = in_background(policy)
    answerer = QueryAnswerer(manager, QuerySettings(wait_s=5.0))
    futures = [answerer.ask(f"what now {i}", TASK) for i in range(64)]
    until(lambda: policy.waiting and policy.waiting + 16 * manager.extractor._thread._inbox.qsize() == 64)
    policy.sampling.set()
    assert {future.result(20).text for future in futures} == {"advice"}
    assert len(policy.calls) <= 2 and sum(map(len, policy.calls)) == 64
    answerer.queries.abandon()
    manager.finish()
    manager.abandon()


def test_background_training_does_not_block_other_extractor_work():
    policy = Pinned(lambda prompt, seed: "entry: merged" if prompt.endswith("merged:") else "add: something")
    policy.sampling.set()
    manager = in_background(policy)
    answerer = QueryAnswerer(manager, QuerySettings(wait_s=0.0))
    assert answerer.ask("before", TASK).result(20).text
    for entry, reward in ((1, 1.0), (2, -1.0)):
        manager.extractor.add_sample(Sample(entry, reward, CALL))
    manager.learn(lambda entry: Usage(), 1)  # returns before the update ends
    assert policy.update_started.wait(20)
    assert answerer.ask("meanwhile", TASK).result(20).text
    manager.start("merge", lambda: manager.merge(IterationInfo(0, 1)))
    until(lambda: manager.counts["merges"] == 1)
    episode = make_group([[1]], success=[True]).trajectories[0]
    manager.submit(DistillRequest(episode, None, IterationInfo(0, 1), "episode"))
    until(lambda: manager.counts["added"] == 1)
    assert not policy.updates and policy.pinned == 1
    policy.updating.set()
    manager.finish()
    assert len(policy.updates) == 1 and manager.extractor.updates == 1
    assert answerer.ask("after", TASK).result(20).text and policy.pinned == 2, "from the new weights"
    answerer.queries.abandon()
    manager.finish()
    manager.abandon()


def test_sampling_and_updates_alternate_without_pinned_weights():
    policy = WaitingPolicy(lambda prompt, seed: "advice")
    policy.sampling.set()
    manager = in_background(policy)
    answerer = QueryAnswerer(manager, QuerySettings(wait_s=0.0))
    answerer.ask("before", TASK).result(20)
    for entry, reward in ((1, 1.0), (2, -1.0)):
        manager.extractor.add_sample(Sample(entry, reward, CALL))
    manager.learn(lambda entry: Usage(), 1)
    assert policy.update_started.wait(20)
    later = answerer.ask("meanwhile", TASK)
    policy.updating.set()
    assert later.result(20).text == "advice" and len(policy.updates) == 1
    answerer.queries.abandon()
    manager.finish()
    manager.abandon()


def test_background_training_error_is_raised_on_finish():
    policy = WaitingPolicy(lambda prompt, seed: "advice")
    policy.update = lambda *_: 1 / 0
    manager = in_background(policy)
    for entry in (1, 2):
        manager.extractor.add_sample(Sample(entry, float(entry), CALL))
    manager.learn(lambda entry: Usage(), 1)
    with pytest.raises(TacitError, match="failed in the background: division by zero"):
        manager.finish()
    manager.abandon()


def test_checkpoint_saves_extractor_after_background_training(tmp_path):
    extractor = ScriptedPolicy(lambda prompt, seed: "")

    class Training(Companion):
        name = "training"

        def save(self, directory):
            extractor.weights = "trained"

    saved = Checkpoints(tmp_path, ("rl",)).save(
        "rl", 1, ScriptedPolicy(lambda *_: ""), {}, True, {"extractor": extractor}, {"t": Training()}
    )
    assert (saved.path / "policies" / "extractor" / "weights").read_text() == "trained"


# One writer


def test_second_writer_is_refused_in_same_or_other_process(tmp_path):
    """Before, two writers left 100 entries at capacity 50."""
    bank = bank_of(tmp_path / "bank.sqlite", ["one"])
    with pytest.raises(TacitError, match=r"bank.sqlite is in use: process \d+ writes to it. Wait until that ends"):
        bank_of(tmp_path / "bank.sqlite")
    program = (
        "import sys; from pathlib import Path; from tacit.companions.experience.bank import Bank\n"
        f"try:\n    Bank(Path(sys.argv[1]), {EMBED.name!r}, {EMBED.dimensions})\nexcept Exception as error:\n    print(error)"
    )
    output = subprocess.run([sys.executable, "-c", program, bank.path], capture_output=True, text=True, check=True).stdout
    assert f"is in use: process {os.getpid()} writes to it" in output
    bank.close()
    bank_of(tmp_path / "bank.sqlite").close()


def test_capacity_applies_after_reopen_and_restore(tmp_path):
    texts = [f"entry {i}" for i in range(9)]
    bank_of(tmp_path / "bank.sqlite", texts, capacity=6).close()
    bank = bank_of(tmp_path / "bank.sqlite", ["more"], capacity=6)
    assert len(bank) == 6
    bank.save_to(tmp_path / "copy.sqlite")
    bank.close()
    smaller = Bank(tmp_path / "bank.sqlite", EMBED.name, EMBED.dimensions, 4)
    assert [e.text for e in smaller.entries.values()] == ["entry 6", "entry 7", "entry 8", "more"]
    smaller.restore_from(tmp_path / "copy.sqlite")
    assert len(smaller) == 4


def test_manual_removal_applies_to_running_and_resumed_runs(tmp_path):
    path = tmp_path / "bank.sqlite"
    manager = ExperienceManager(
        bank_of(path, ["open the box", "open the chest"]), EMBED, Extractor(lambda: None), Diversity(demotion=0.0)
    )
    manager.bank.save_to(tmp_path / "checkpoint.sqlite")
    assert manager.search([Query("open the box")], 1)[0].id == 1
    assert remove_by_hand(path, [1]) == 1
    assert manager.search([Query("open the box")], 2)[0].id == 2 and list(manager.bank.entries) == [2]
    with pytest.raises(TacitError, match="no entry 1"):
        remove_by_hand(path, [2, 1])
    manager.bank.clear()
    manager.bank.restore_from(tmp_path / "checkpoint.sqlite")
    assert list(manager.bank.entries) == [2], "in a run that is resumed, too"
