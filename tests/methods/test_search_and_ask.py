"""search_and_ask: an agent queries the bank during an episode and reads the answer in its next prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, group_extractor, solve_countdown

from tacit.companions.experience.bank import BY_HAND, Origin
from tacit.companions.experience.companion import GUIDED
from tacit.companions.experience.extractor import parse_advice
from tacit.companions.experience.manager import QueryQueue
from tacit.core.method import Schedule
from tacit.core.protocols import Sampling
from tacit.losses.surrogates import Imitation
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.prompts.search_and_ask import ASK, ASKED, ENTRY
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0), "extractor_style": "terse"}
QUESTION = "which numbers go first?"


def advising_extractor(prompt: str, seed: int) -> str:
    return f"advice {seed % 97}: largest first" if prompt.endswith("advice:") else "return"


def asking_once(prompt: str, seed: int) -> str:
    """Asks if it may and has no answer yet; then solves the task."""
    if f"ask: {ASK}" in prompt and QUESTION not in prompt:
        return f"{ASK} {QUESTION}"
    return solve_countdown(next(line for line in prompt.splitlines() if " > " in line))


def make_loop(place: Path, extractor: Callable = advising_extractor, actor: Callable = asking_once, **settings):
    """(loop, companion, actor, extractor) with two entries in the bank."""
    helper, player = ScriptedPolicy(extractor), ScriptedPolicy(actor)
    options = {**TERSE, "extractor_tokens": 32, "merge_every": 0, "kl": 0.0, "demotion": 0.0, **settings}
    schedule = Schedule(groups=2, group_size=4, lr=1e-3)
    method = replace(get_method("complementary")(**group_extractor(options)), schedule=schedule).build(
        WORLD, Kit(helper, place)
    )
    experience = method.companions[0]
    bank, embed = experience.manager.bank, experience.manager.embedding
    for text in ("which numbers go first: the largest", "nothing of the kind"):
        bank.add(text, embed([text])[0], Origin(world="countdown"))
    loop = Loop([Collector(method, WORLD.tasks("train", 6, 0), InProcessPool(WORLD.make), 24, 6)], player, iterations=3)
    return loop, experience, player, helper


def guided_and_free(done):
    episodes = [t for g in done.groups for t in g.trajectories]
    return [t for t in episodes if t.condition.name == GUIDED], [t for t in episodes if t.condition.name != GUIDED]


def test_guided_agents_ask_and_get_the_answer_next_turn(tmp_path):
    loop, experience, _, helper = make_loop(tmp_path)
    done = loop.iterate(1)
    guided, free = guided_and_free(done)
    for trajectory in guided:
        first, second = trajectory.steps[:2]
        assert first.action == f"{ASK} {QUESTION}" and first.signals[ASKED] == 1.0 and int(first.signals[ENTRY]) == 1
        assert f"<note>\n{QUESTION}\nadvice" in second.prompt.text and second.observation == first.observation
        assert trajectory.success, "the world does not advance during a question"
    assert not any(ASKED in step.signals or ASK in step.prompt.text for t in free for step in t.steps)
    assert done.metrics["experience/asked"] == done.metrics["experience/answered"] == len(guided) == 4
    batches = [call for call in helper.calls if call[0][0].endswith("advice:")]
    assert [len(call) for call in batches] == [4], "all of a round in one batch"
    usage = experience.manager.bank.usage[1]
    assert usage.wins == 4 and usage.retrieved >= 4, "a retrieved entry counts as guiding, once per episode"


def test_retrieved_entries_are_rewarded_by_episode_outcome(tmp_path):
    """As for an initial entry: the mean of ±1 over all episodes that had it, from the start or by a question."""

    def extractor(prompt: str, seed: int) -> str:
        if prompt.endswith("advice:"):
            return "the largest"
        return "add: which numbers go first depends" if f"{ASK} " in prompt else "add: something else altogether"

    def actor(prompt: str, seed: int) -> str:
        answer = asking_once(prompt, seed)
        return answer if seed % 2 or answer.startswith(ASK) else "hm"

    loop, experience, _, _ = make_loop(tmp_path, extractor, actor, diversity=0.0, recency=0)
    loop.iterate(1)
    bank = experience.manager.bank
    bank.replace([1, 2], (), BY_HAND)  # added by hand, so without a call to train on
    guided, _ = guided_and_free(loop.iterate(2))
    earned: dict[int, list[float]] = {}
    for trajectory in guided:
        retrieved = {int(step.signals[ENTRY]) for step in trajectory.steps if ENTRY in step.signals}
        assert retrieved
        for entry in {int(trajectory.condition.entry), *retrieved}:
            earned.setdefault(entry, []).append(1.0 if trajectory.success else -1.0)
    buffer = experience.manager.extractor.buffer
    found = {sample.entry: sample.reward for sample in buffer if not sample.refinement}
    assert found == {entry: pytest.approx(np.mean(rewards)) for entry, rewards in earned.items()}
    assert len({trajectory.success for trajectory in guided}) == 2, "there is something to tell apart"


def test_guided_winners_are_imitated_without_their_questions(tmp_path):
    """§4.3: questions are removed from the targets and from the history of later turns."""

    def actor(prompt: str, seed: int) -> str:
        if QUESTION not in prompt:
            return f"{ASK} {QUESTION}" if ASK in prompt else "hm"
        return solve_countdown([line for line in prompt.splitlines() if " > " in line and " : " not in line][-1])

    loop, _, player, _ = make_loop(tmp_path, actor=actor, internalise=1e-3, prompt=replace(TERSE["prompt"], history=3))
    guided, _ = guided_and_free(loop.iterate(1))
    (batch,) = [batch for batch, losses, _ in player.updates if losses == (Imitation(),)]
    acted = [step for t in guided if t.success for step in t.steps if ASKED not in step.signals]
    assert acted and len(acted) < sum(len(t) for t in guided), "some winners asked a question"
    assert [player.decode(c) for c in batch.completions] == [step.completion.text for step in acted]
    assert not any(ASK in player.decode(p) or "<note>" in player.decode(p) for p in batch.prompts)


def test_plain_mode_returns_entry_and_none_disables_questions(tmp_path):
    loop, _, _, helper = make_loop(tmp_path, search_and_ask="plain")
    guided, _ = guided_and_free(loop.iterate(1))
    assert all(f"{QUESTION}\nwhich numbers go first: the largest" in t.steps[1].prompt.text for t in guided)
    assert not [call for call in helper.calls if call[0][0].endswith("advice:")]
    loop, *_ = make_loop(tmp_path / "none", search_and_ask="none")
    guided, _ = guided_and_free(loop.iterate(1))
    assert guided and not any(ASK in step.prompt.text for t in guided for step in t.steps)


def test_empty_advice_falls_back_to_the_entry(tmp_path):
    loop, experience, _, _ = make_loop(tmp_path, extractor=lambda prompt, seed: " " if prompt.endswith("advice:") else "return")
    guided, _ = guided_and_free(loop.iterate(1))
    assert all("which numbers go first: the largest" in t.steps[1].prompt.text for t in guided)
    assert experience.manager.counts["refused"] == 4


def test_answers_are_deterministic_for_any_query_batch_size(tmp_path):
    def heard(place: Path, size: int) -> list[str]:
        loop, *_ = make_loop(place, query_batch=size)
        return [step.prompt.text for number in (1, 2) for t in guided_and_free(loop.iterate(number))[0] for step in t.steps]

    first = heard(tmp_path / "a", 16)
    assert first == heard(tmp_path / "b", 16) and first == heard(tmp_path / "c", 1), "nor does it depend on the batch"


def test_background_threads_give_the_same_answers(tmp_path):
    def heard(place: Path, background: bool) -> list[str]:
        loop, experience, *_ = make_loop(place, background=background, query_batch=3)
        texts = [step.prompt.text for t in guided_and_free(loop.iterate(1))[0] for step in t.steps]
        experience.manager.finish()
        experience.manager.abandon()
        return texts

    assert heard(tmp_path / "a", True) == heard(tmp_path / "b", False)


def test_evaluation_questions_do_not_change_bank_usage(tmp_path):
    loop, experience, player, _ = make_loop(tmp_path)
    method, bank = loop.collectors[0].method, experience.manager.bank
    before = {i: vars(u).copy() for i, u in bank.usage.items()}
    plans = [EpisodePlan(task, 1, method.conditions.evaluated[GUIDED](task)) for task in WORLD.tasks("test", 3, 0)]
    played = rollout(plans, method.context, InProcessPool(WORLD.make), player, Sampling(1.0, max_tokens=24), 6)
    assert all(ASKED in t.steps[0].signals and t.success for t in played)
    assert {i: vars(u) for i, u in bank.usage.items()} == before


FULL = replace(TERSE["prompt"], wording="full")


@pytest.mark.parametrize(
    ("style", "written"),
    [
        ("tags", f"<think>hm</think><action>{ASK} {QUESTION}</action>"),
        ("bare", f"{ASK} {QUESTION}"),
        ("bare", f"{ASK}: {QUESTION}"),
    ],
)
def test_questions_work_in_every_action_style(style, written, tmp_path):
    """With the full wording, a question in the action style is answered and the episode goes on."""

    def actor(prompt: str, seed: int) -> str:
        return written if "you may ask instead of acting" in prompt and f"\n{QUESTION}\n" not in prompt else "hm"

    loop, _, _, _ = make_loop(tmp_path, actor=actor, prompt=replace(FULL, style=style))
    guided, _ = guided_and_free(loop.iterate(1))
    for trajectory in guided:
        assert trajectory.steps[0].valid and ASKED in trajectory.steps[0].signals
        assert f"{QUESTION}\nadvice" in trajectory.steps[1].prompt.text and trajectory.steps[1].action == "hm"
        assert f"{QUESTION}\nadvice" in trajectory.steps[-1].prompt.text, "until the next question"
        assert len([step for step in trajectory.steps if ASKED in step.signals]) == 1


def test_query_queue_without_workers_searches_in_batches_on_demand():
    searched: list[list[str]] = []
    desk = QueryQueue(lambda queries: searched.append(list(queries)) or list(queries), size=2, workers=0)
    futures = [desk.ask(name) for name in "abc"]
    assert searched == [] and [f.result() for f in futures] == ["a", "b", "c"] and searched == [["a", "b"], ["c"]]


def test_parse_advice_returns_empty_text_for_invalid_answers():
    assert parse_advice('Well: {"advice": " go "}', "json") == "go" and parse_advice("\n go \nadd: x", "terse") == "go"
    for answer in ("", "{}", '{"advice": 3}', '["advice"]', "{" * 5000, '{"advice": "' + "x" * 5000 + '"}'):
        assert parse_advice(answer, "json") == ""


def test_building_without_resources_creates_no_bank(tmp_path, monkeypatch):
    """Without resources there is no run directory, so a bank in the working directory must not be opened."""
    monkeypatch.chdir(tmp_path)
    method = get_method("complementary")(**group_extractor(TERSE)).build(WORLD)
    assert {c.name for c in method.conditions.assign(WORLD.tasks("train", 1, 0)[0], 4, 0)} == {"plain"}
    assert not list(tmp_path.iterdir())
