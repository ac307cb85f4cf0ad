"""The evaluation journal: interrupted evaluations resume with the same result."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.core.protocols import Sampling
from tacit.engines.endpoint import ByteTokens
from tacit.evaluation.behavior import behavior
from tacit.evaluation.evaluate import MAX_TOKENS, Journal, Measurement, SingleAgent, TurnCache, evaluate, play_panel
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import score_panel
from tacit.prompts.history import History
from tacit.rollout.episodes import NO_OBSERVER, RolloutObserver
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = History(WORLD.wording("terse"), turns=1, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 10)
RULES = Rules(Sampling(temperature=0.4), 4, repeats=2)
MEASURED = Measurement.of(PANEL, RULES, "a policy", "f00d", {"method": "grpo"}, "float32 on cpu", "0.1.0+abc")


class Killed(BaseException):
    pass


class Steady(ByteTokens, ScriptedPolicy):
    """Encodes text to the same tokens in every process, like a real tokenizer."""

    # A class that inherits from a protocol and was instantiated has `object.__init__` in Python 3.11.
    __init__ = ScriptedPolicy.__init__


class Dying(Steady):
    """Raises Killed after the given number of sample calls."""

    def __init__(self, turns: int) -> None:
        super().__init__(stumble_through_countdown)
        self._turns = turns

    def sample(self, requests, sampling, hidden=None):
        if len(self.calls) == self._turns:
            raise Killed
        return super().sample(requests, sampling, hidden)


def play(journal=None, policy=None, repeats=2, batch=4, on_resume=None, observer=NO_OBSERVER):
    policy = policy or Steady(stumble_through_countdown)
    rules, route = replace(RULES, repeats=repeats), SingleAgent(TERSE, policy)
    return play_panel(
        PANEL, rules, InProcessPool(WORLD.make), route, batch=batch, journal=journal, on_resume=on_resume, observer=observer
    ), policy


def table(played) -> tuple:
    return score_panel(PANEL, played, RULES).to_json(), behavior(played, WORLD.alphabet, WORLD.failure)


def answers(policy) -> int:
    return sum(len(requests) for requests in policy.calls)


def answers_before(policy, turn: int) -> int:
    return sum(len(requests) for requests in policy.calls[:turn])


@pytest.mark.slow
def test_evaluation_killed_at_any_turn_resumes_to_the_same_result(tmp_path):
    whole, policy = play()
    turns = len(policy.calls)
    assert 0 < sum(t.success for t in whole) < 20 and turns > 10
    for dies_after in range(turns):
        journal = Journal(tmp_path / str(dies_after), MEASURED)
        with pytest.raises(Killed):
            play(journal, Dying(dies_after))
        played, again = play(Journal(tmp_path / str(dies_after), MEASURED))
        assert table(played) == table(whole)
        assert answers(again) == answers(policy) - answers_before(policy, dies_after), "nothing is sampled twice"


def test_finished_episodes_are_reused_and_repeats_extend_them(tmp_path):
    first, _ = play(Journal(tmp_path, MEASURED), repeats=1)
    journal = Journal(tmp_path, MEASURED)
    again, policy = play(journal, repeats=1)
    assert policy.calls == [] and table(again) == table(first)
    assert journal.notes == [f"already played: 10 episodes, in {journal.path} (--fresh plays them again)"]
    more, policy = play(Journal(tmp_path, MEASURED), repeats=2)
    assert table(more) == table(play()[0]) and sum(len(a) for a in policy.calls) < sum(len(a) for a in play()[1].calls)
    fewer, policy = play(Journal(tmp_path, MEASURED), repeats=1)
    assert policy.calls == [] and table(fewer) == table(first)


def test_half_written_line_is_replayed(tmp_path):
    whole, _ = play(Journal(tmp_path, MEASURED))
    path = Journal(tmp_path, MEASURED).path
    text = path.read_text()
    path.write_text(text[: len(text) - 40])
    seen: list[int] = []
    played, policy = play(Journal(tmp_path, MEASURED), on_resume=seen.append)
    assert seen == [19] and {len(call) for call in policy.calls} == {1}
    assert table(played) == table(whole)
    assert play(Journal(tmp_path, MEASURED))[1].calls == [], "the new line did not become part of the half one"


def test_file_name_depends_on_the_measurement(tmp_path):
    names = {replace(MEASURED, **change).file_name for change in (
        {}, {"panel_hash": "0"}, {"fingerprint": "beef"}, {"seed": 1}, {"max_steps": 5},
        {"sampling": {"temperature": 0.0}}, {"reads": {"method": "rloo"}},
        {"numbers": "bfloat16 on cpu"}, {"numbers": "float32 on cuda"},
    )}  # fmt: skip
    assert len(names) == 9 and MEASURED.file_name.startswith(f"{PANEL.hash}-")
    assert replace(MEASURED, code="another", model="in other words").file_name == MEASURED.file_name
    assert replace(MEASURED, numbers="").settings_hash == "c7c6c27f58bd", "an endpoint's episodes keep the name they had"


def test_episodes_of_another_version_are_moved_aside_with_a_note(tmp_path):
    play(Journal(tmp_path, MEASURED))
    journal = Journal(tmp_path, replace(MEASURED, code="0.2.0+def"))
    played, policy = play(journal)
    assert policy.calls and len(played) == 20
    (note,) = journal.notes
    aside = journal.path.with_suffix(".0.1.0+abc.jsonl")
    assert "played by tacit 0.1.0+abc, this is 0.2.0+def" in note and str(aside) in note
    assert len(aside.read_text().splitlines()) == 21, "nothing is lost"
    assert json.loads(journal.path.read_text().splitlines()[0])["code"] == "0.2.0+def"


@pytest.mark.parametrize("head", ["", "nonsense\n", "[1]\n", '{"format": 99, "code": "0.1.0+abc"}\n'])
def test_unreadable_journal_is_moved_aside(tmp_path, head):
    journal = Journal(tmp_path, MEASURED)
    journal.path.write_text(head)
    played, _ = play(journal)
    (note,) = journal.notes
    assert len(played) == 20 and ("was moved to" in note or "in format 99, not 1" in note)
    assert any(path.read_text() == head for path in tmp_path.iterdir())


def test_fresh_keeps_previous_files(tmp_path):
    play(Journal(tmp_path, MEASURED))
    for _ in range(2):
        journal = Journal(tmp_path, MEASURED)
        journal.reset_files()
        assert play(journal)[1].calls
    assert len(list(tmp_path.iterdir())) == 3


def test_line_separators_in_completions_do_not_break_lines(tmp_path):
    def mumble(prompt: str, seed: int) -> str:
        return '\u2028\x85\x0b hm \u2029 ["}\\'

    whole, _ = play(Journal(tmp_path, MEASURED), ScriptedPolicy(mumble))
    again, policy = play(Journal(tmp_path, MEASURED))
    assert policy.calls == [] and table(again) == table(whole)
    assert [s.action for t in again for s in t.steps] == [s.action for t in whole for s in t.steps]


def test_episode_is_saved_when_it_ends(tmp_path):
    journal, kept = Journal(tmp_path, MEASURED), []

    class Looking(RolloutObserver):
        def on_episode_end(self, index, trajectory):
            kept.append(len(journal.path.read_text().splitlines()) - 1)

    play(journal, batch=20, observer=Looking())
    assert kept == list(range(1, 21))


def test_truncated_turn_is_sampled_again_and_turn_file_is_removed(tmp_path):
    journal = Journal(tmp_path, MEASURED)
    with pytest.raises(Killed):
        play(journal, Dying(1), batch=20)
    turns = journal.path.with_suffix(".turns")
    text = turns.read_text()
    turns.write_text(text[:-10])
    played, again = play(Journal(tmp_path, MEASURED), batch=20)
    whole, policy = play(batch=20)
    assert table(played) == table(whole) and answers(again) == answers(policy) - answers_before(policy, 1) + 1
    assert not turns.exists()


def test_damaged_turns_are_skipped_and_large_counts_take_no_memory(tmp_path):
    good = {"request": "a", "wrote": "x", "tokens": 2, "logprob": -1.0, "finish": "stop"}
    bad = [{"tokens": n} for n in (MAX_TOKENS + 1, 10**400, -1, 1.5, "2", None)]
    bad += [{"logprob": 10**400}, {"logprob": "x"}, {"wrote": 1}, {"finish": []}, {"request": []}, {"read": "x"}]
    large = [{**good, "request": str(i), "tokens": MAX_TOKENS} for i in range(100)]
    lines = [*({**good, "request": "bad", **one} for one in bad), *large, good]
    (tmp_path / "x.turns").write_text("\n".join(map(json.dumps, lines)))
    cache = TurnCache(tmp_path / "x.turns")
    tracemalloc.start()
    cache.read()
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert set(cache.completions) == {"a", *map(str, range(100))}
    assert cache.completions["a"].tokens.shape == (2,) and cache.completions["a"].logprobs.tolist() == [-0.5, -0.5]


def test_turns_of_another_measurement_are_not_reused(tmp_path):
    with pytest.raises(Killed):
        play(Journal(tmp_path, MEASURED), Dying(3))
    other = Journal(tmp_path, replace(MEASURED, code="0.2.0+def"))
    assert answers(play(other)[1]) == answers(play()[1])


class Failing(Steady):
    """Every answer to the second task is unusable."""

    def sample(self, requests, sampling, hidden=None):
        lost = f"> {PANEL.tasks[1].data['target']}"
        return [
            replace(c, text="", finish="unusable") if lost in self.decode(r.prompt) else c
            for r, c in zip(requests, super().sample(requests, sampling, hidden), strict=True)
        ]


def test_episode_with_unusable_answer_is_counted_but_not_saved(tmp_path):
    journal = Journal(tmp_path, MEASURED)
    played, _ = play(journal, Failing(stumble_through_countdown))
    lost = [t for t in played if t.unusable]
    assert len(lost) == 2 and score_panel(PANEL, played, RULES).to_json()["unusable"] == sum(len(t) for t in lost)
    assert journal.notes == ["not saved, because they broke off: 2 episodes; the same command plays them again"]
    repaired, policy = play(Journal(tmp_path, MEASURED))
    assert answers(policy) == sum(len(t) for t in repaired if t.task == PANEL.tasks[1])
    assert table(repaired) == table(play()[0])


def test_evaluate_equals_play_and_score():
    score, played = evaluate(PANEL, RULES, InProcessPool(WORLD.make), TERSE, Steady(stumble_through_countdown))
    assert table(played) == table(play()[0]) and score.to_json() == table(played)[0]
