"""Options of Complementary RL: offline bank, the actor as critic (Eq. 8), self-distillation of guided winners."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, group_extractor, make_group

from tacit.companions.experience.bank import MAX_ENTRY_CHARS, Bank, Entry
from tacit.companions.experience.companion import GUIDED, critic_verdict, guiding_entry, select_guided_winners
from tacit.companions.experience.files import fill_bank
from tacit.companions.experience.manager import Critic, critic_reward, parse_verdict
from tacit.companions.experience.retrieval import NgramEmbedding
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.types import PLAIN, Condition, Group
from tacit.losses.surrogates import Imitation
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment
from tacit.worlds.errands.world import DOORS, HOME, THINGS, town_map

WORLD = get_environment("errands")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0), "kl": 0.0}


TASKS = [t for t in WORLD.tasks("train", 432, 0) if t.data["thing"] in THINGS[:2]]
"""only two things, so entries are useful for later tasks"""


def acting(prompt: str, seed: int) -> str:
    """As agent: takes the wanted thing if visible, follows a note, or opens a random door. As critic: a verdict by seed."""
    lines = prompt.splitlines()
    if lines[-1] == "accept, refine or reject:":
        return ("accept", "reject", "refine: mug behind red", "hm")[seed % 4]
    thing = lines[0].rpartition(": ")[2]
    if thing in lines[-1]:
        return f"take {thing}"
    note = next((line for line in lines if " behind " in line and not line.startswith("behind")), "")
    return f"open {note.rpartition(' ')[2]}" if note else f"open {DOORS[seed % 8]}"


def noting(prompt: str, seed: int) -> str:
    """An extractor that adds where the wanted thing was seen, or a useless entry."""
    thing = prompt.splitlines()[0].rpartition(": ")[2]
    seen = [line.partition(" > behind ")[2].partition(": ") for line in prompt.splitlines() if " > behind " in line]
    return next((f"add: {thing} behind {door}" for door, _, things in seen if thing in things.split(", ")), "add: doors open")


def play(tmp_path, iterations=3, actor=None, **settings):
    """(method, results of the iterations, actor, extractor)"""
    actor, extractor = actor or ScriptedPolicy(acting), ScriptedPolicy(noting)
    options = {"extractor_style": "terse", "extractor_tokens": 32, "merge_every": 0, "extractor_batch": 4, **settings}
    chosen = replace(
        get_method("complementary")(**SMALL), schedule=Schedule(groups=6, group_size=4, lr=1e-3), **group_extractor(options)
    )
    method = chosen.build(WORLD, Kit(extractor, tmp_path))
    loop = Loop([Collector(method, TASKS, InProcessPool(WORLD.make), 12, 3)], actor, iterations=iterations)
    return method, [loop.iterate(n + 1) for n in range(iterations)], actor, extractor


def test_offline_bank_is_filled_at_start_and_never_changes(tmp_path):
    method, done, actor, extractor = play(tmp_path, extraction="offline", beforehand=200)
    bank = method.companions[0].manager.bank
    texts = [entry.text for entry in bank.entries.values()]
    true = {f"{thing} behind {door}" for door, things in town_map(HOME).items() for thing in things}
    assert 10 < len(texts) == len(set(texts)) <= 24 and set(texts) <= true, "each text once, and hindsight saw it"
    assert {t.condition.name for g in done[0].groups for t in g.trajectories} == {GUIDED, "plain"}
    assert all(d.metrics["experience/entries"] == len(texts) for d in done)
    assert not extractor.calls and not extractor.updates and len(actor.updates) == 3, "nobody writes, the actor learns"
    assert sum(bank.usage[i].wins + bank.usage[i].losses for i in bank.entries) > 0, "guided outcomes are still recorded"
    assert method.conditions.evaluated[GUIDED](WORLD.tasks("test", 1, 0)[0]).note


def test_offline_bank_is_loaded_from_file_or_another_run(tmp_path):
    first, _, _, _ = play(tmp_path / "first")
    texts = {e.text for e in first.companions[0].manager.bank.entries.values()}
    again, _, _, _ = play(tmp_path / "second", extraction="offline", bank=str(tmp_path / "first"))
    assert {e.text for e in again.companions[0].manager.bank.entries.values()} == texts
    lines = tmp_path / "known.jsonl"
    lines.write_text(json.dumps({"text": "mug behind red"}) + "\n")
    method, _, _, _ = play(tmp_path / "third", extraction="offline", bank=str(lines))
    assert [e.text for e in method.companions[0].manager.bank.entries.values()] == ["mug behind red"]


def test_invalid_bank_source_is_refused(tmp_path):
    ngrams = NgramEmbedding()
    bank = Bank(tmp_path / "b.sqlite", ngrams.name, ngrams.dimensions)
    broken = tmp_path / "broken.jsonl"
    for line in (
        b"{",
        b"\xff\xfe",
        b'{"text": 3}',
        json.dumps({"text": "x" * (MAX_ENTRY_CHARS + 1)}).encode(),
        b'{"text": "  "}',
        b'{"text": "\\ud800"}',
        b'{"text": "odd", "origin": {"step": "two"}}',
        b'{"text": "odd", "origin": [1]}',
        b"[" * 100_000,
        b'{"text": "odd", "origin": {"world": "\\ud800"}}',
    ):
        broken.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
        with pytest.raises(TacitError, match=r"broken\.jsonl, line 3: .* Fix or delete the line"):
            fill_bank(bank, ngrams, WORLD, str(broken), 4)
        assert not len(bank)
    with pytest.raises(TacitError, match="there is no experience bank"):
        fill_bank(bank, ngrams, WORLD, str(tmp_path / "nowhere"), 4)
    with pytest.raises(TacitError, match="no hindsight rule to fill a bank with"):
        fill_bank(bank, ngrams, replace(WORLD, hindsight=None), "", 4)
    fill_bank(bank, ngrams, WORLD, "", 8)
    before = list(bank.entries)
    fill_bank(bank, ngrams, WORLD, str(broken), 4)
    assert list(bank.entries) == before, "one that is there already is not filled again"


def test_settings_that_train_nothing_are_refused(tmp_path):
    for wrong in ({"extraction": "static"}, {"extraction": "offline"}, {"extraction": "none"}):
        with pytest.raises(TacitError, match="nothing would be trained"):
            build(tmp_path, actor="fixed", **wrong)
    with pytest.raises(TacitError, match="internalise trains the actor"):
        build(tmp_path, actor="fixed", internalise=1e-4)


def build(place, **settings):
    return get_method("complementary")(**SMALL, **settings).build(WORLD, Kit(ScriptedPolicy(noting), place))


def test_critic_verdicts_and_rewards_match_hand_computed_values():
    assert parse_verdict("accept", "m") == ("accept", "m") == parse_verdict(" Accept: yes\nmore", "m")
    assert parse_verdict("refine: mug behind red", "m") == ("refine", "mug behind red")
    assert parse_verdict("reject", "m") == ("reject", "")
    assert parse_verdict("<think>\nreject?\n</think>\n\naccept", "m") == ("accept", "m"), "what was thought is no verdict"
    for unread in ("", "refine:", "I think so", "\n\n", "<think>\naccept", "refine: half a \ud83d"):
        assert parse_verdict(unread, "m") == ("unread", "m")
    assert [critic_reward(v, True) for v in ("accept", "refine", "unread", "reject")] == [2.0, 1.5, 1.0, 0.0]
    assert [critic_reward(v, False) for v in ("accept", "refine", "unread", "reject")] == [0.0, -0.5, -1.0, 0.0]
    assert (
        critic_verdict(Condition(GUIDED, "x", "17 refine")) == (17, "refine")
        and guiding_entry(Condition(GUIDED, "x", "17 refine")) == 17
    )
    rejected = Condition("plain", "", "17 reject")
    assert critic_verdict(rejected) == (17, "reject") and guiding_entry(rejected) is None
    assert critic_verdict(Condition(GUIDED, "x", "17")) is None and guiding_entry(Condition(GUIDED, "x", "17")) == 17


def test_critic_prompt_has_success_rate_and_one_entry():
    critic, task = Critic("terse"), WORLD.tasks("train", 1, 0)[0]
    group = make_group([[1]] * 4, success=[True, False, False, False], task=task)
    for trajectory in group.trajectories:
        critic.record(trajectory)
    policy = ScriptedPolicy(acting)
    scores = critic.judge(policy, task, [Entry(1, "mug behind red"), Entry(2, "bell behind blue")], 7)
    ((first, second),) = policy.calls
    assert len(scores) == 2 and critic.rate(task) == 0.25 and first[1] != second[1]
    assert first[0].splitlines() == [task.goal, "entry: mug behind red", "success: 25%", "accept, refine or reject:"]
    assert critic.judge(ScriptedPolicy(acting, context_limit=70), task, [Entry(1, "word " * 60)], 7) == [
        ("unread", "word " * 60)
    ]


def test_extractor_reward_combines_critic_and_outcome(tmp_path):
    method, done, _, _ = play(tmp_path, iterations=2, critic=True, extractor_batch=1000)
    earned: dict[int, list[float]] = {}
    words = set()
    for trajectory in (t for g in done[1].groups for t in g.trajectories):
        if (verdict := critic_verdict(trajectory.condition)) is not None:
            entry, word = verdict
            words.add(word)
            earned.setdefault(entry, []).append(critic_reward(word, trajectory.success))
            assert (trajectory.condition.name == GUIDED) == (word != "reject") == bool(trajectory.condition.note)
    assert words >= {"accept", "reject"}
    kept = {sample.entry: sample.reward for sample in method.companions[0].manager.extractor.buffer}
    assert kept == pytest.approx({entry: np.mean(own) for entry, own in earned.items()})


def test_critic_success_counts_survive_save_and_load(tmp_path):
    method, done, _, _ = play(tmp_path / "a", iterations=2, critic=True, extractor_batch=1000)
    experience = method.companions[0]
    ended = [t for d in done for g in d.groups for t in g.trajectories]
    assert sum(played for _, played in experience.critic.wins.values()) == len(ended)
    assert sum(won for won, _ in experience.critic.wins.values()) == sum(t.success for t in ended) > 0
    (tmp_path / "saved").mkdir()
    experience.manager.extractor.updates = 3  # the version of the next calls
    experience.save(tmp_path / "saved")
    other, *_ = play(tmp_path / "b", iterations=0, critic=True, extractor_batch=1000)
    again = other.companions[0]
    again.load(tmp_path / "saved")
    assert again.critic.wins == experience.critic.wins and again.manager.extractor.updates == 3
    waiting = [(s.entry, s.reward, s.episodes) for s in experience.manager.extractor.buffer]
    assert waiting == [(s.entry, s.reward, s.episodes) for s in again.manager.extractor.buffer]
    guided = [critic_verdict(t.condition)[0] for t in ended if critic_verdict(t.condition)]
    assert {entry: count for entry, _, count in waiting} == {entry: guided.count(entry) for entry in guided}


def test_actor_gets_no_critic_prompts_without_critic(tmp_path):
    _, done, actor, _ = play(tmp_path)
    assert not any("accept, refine or reject:" in prompt for call in actor.calls for prompt, _ in call)
    assert all(critic_verdict(t.condition) is None for d in done for g in d.groups for t in g.trajectories)


def guided_group(scores, guided):
    group = make_group([[2]] * len(scores), success=[s == 1.0 for s in scores])
    conditions = [Condition(GUIDED, "x", "1") if g else PLAIN for g in guided]
    members = [replace(t, score=s, condition=c) for t, s, c in zip(group.trajectories, scores, conditions, strict=True)]
    return Group(group.task, tuple(members))


def test_guided_winners_score_above_the_mean_of_free_members():
    group = guided_group([1.0, 0.5, 0.25, 1.0, 0.0], [True, True, True, False, False])
    assert [t.score for t in select_guided_winners(group)] == [1.0], "0.5 is the free mean, and not above it"
    assert not select_guided_winners(guided_group([1.0, 1.0], [True, True])), "nobody was free"
    assert not select_guided_winners(guided_group([1.0, 1.0, 1.0], [True, False, False])), "the free do as well"
    assert not select_guided_winners(guided_group([0.0, 1.0], [True, False]))


def test_guided_winners_are_imitated_without_the_note(tmp_path):
    _, done, actor, _ = play(tmp_path, internalise=3e-4)
    steps = [(batch, losses, lr) for batch, losses, lr in actor.updates if losses == (Imitation(),)]
    won = [t for g in done[-1].groups for t in select_guided_winners(g)]
    assert won and len(steps) >= 1 and done[-1].metrics["experience/internalised"] == len(won)
    batch, _, lr = steps[-1]
    assert lr == 3e-4 and len(batch) == sum(len(t) for t in won) and not batch.sampled
    for prompt, step in zip(batch.prompts, [s for t in won for s in t.steps], strict=True):
        assert "<note>" in step.prompt.text
        assert actor.decode(prompt) == step.prompt.with_notes("").text
    np.testing.assert_array_equal(batch.completions[0], won[0].steps[0].completion.tokens)


def test_invalid_steps_are_not_imitated(tmp_path):
    def sometimes_mute(prompt: str, seed: int) -> str:
        return "" if seed % 3 == 0 else acting(prompt, seed)

    _, done, actor, _ = play(tmp_path, iterations=4, actor=ScriptedPolicy(sometimes_mute), internalise=3e-4)
    batches = [batch for batch, losses, _ in actor.updates if losses == (Imitation(),)]
    won = [[t for g in d.groups for t in select_guided_winners(g)] for d in done]
    steps = [step for each in won if each for t in each for step in t.steps]
    assert not all(step.valid for step in steps), "some won all the same"
    assert sum(map(len, batches)) == sum(step.valid for step in steps)


def test_internalization_follows_its_interval_or_is_off(tmp_path):
    never, _, plain, _ = play(tmp_path / "never")
    assert [c.name for c in never.companions] == ["experience"] and len(plain.updates) == 3
    _, done, sometimes, _ = play(tmp_path / "sometimes", internalise=3e-4, internalise_every=3)
    assert "experience/internalised" not in done[1].metrics and "experience/internalised" in done[2].metrics
    assert sum(losses == (Imitation(),) for _, losses, _ in sometimes.updates) == 1


def test_useful_metric_is_share_of_entries_with_positive_reward(tmp_path):
    _, done, _, _ = play(tmp_path)
    earned = {}
    for g in done[-1].groups:
        for t in g.trajectories:
            if (entry := guiding_entry(t.condition)) is not None:
                earned.setdefault(entry, []).append(1 if t.success else -1)
    assert done[-1].metrics["experience/useful"] == np.mean([np.mean(own) > 0 for own in earned.values()])
    assert "experience/useful" not in done[0].metrics, "nobody was guided"
