"""The checks of drafted trackers, and the requests to a model until a draft passes."""

from __future__ import annotations

from dataclasses import replace

import drafts
import pytest
from household_logs import WORLD, household

from tacit.core.types import Observation, Task, Transition
from tacit.modules.drafting.checks import Draft, check_draft
from tacit.modules.drafting.draft import (
    build_prompt,
    choose_examples,
    draft_until_valid,
    extract_code,
    list_action_kinds,
)
from tacit.modules.drafting.packaged import PackagedDraft
from tacit.modules.drafting.sandbox import DraftError, Limits, Sandbox
from tacit.modules.drafting.tracker import DraftedTracker, DraftRules, RewardedTracker, render_fields
from tacit.training.imitation import parse_recording

QUICK = Limits(call_s=0.5)


@pytest.fixture(scope="module")
def episodes():
    """Twelve won episodes, and six lost ones that stop just before winning."""
    return [parse_recording(number, line) for number, line in enumerate(household(12, ["pick"], lost=6), start=1)]


def test_good_draft_passes_all_checks(episodes) -> None:
    found = check_draft(Draft(drafts.GOOD, QUICK), episodes)
    assert found.passed and set(found.verdicts().values()) == {"held"} and not found.notes
    assert (found.episodes, found.won) == (18, 12) and 100 < found.longest <= 400


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("draft", "check", "what"),
    [
        (drafts.ALWAYS_DONE, "done", "episode of line 1, turn 0: done, and it was not won yet"),
        (drafts.COUNTS_TURNS, "done", "turn 5: done, and it was not won yet"),
        (drafts.ASKS_THE_OUTCOME, "runs", "missing 1 required positional argument: 'success'"),
        (drafts.NEVER_ENDS, "runs", "episode of line 1, turn 3: no answer within 0.5 s"),
        (drafts.READS_FILES, "reads", "line 1: imports os"),
        (drafts.REMEMBERS, "deterministic", "another block, `done` or reward the second time"),
        (drafts.GROWS, "bounded", "of an episode that goes on through the turns of the others: 4"),
        (drafts.OVERPAYS, "rewards", "in a won episode, and the claim is 2"),
        (drafts.UNDERPAYS, "rewards", "subgoal adds up to 2 in a won episode, and the claim is 3"),
        (drafts.MISNAMES, "rewards", "turn 1: 'discovery' is no rule of REWARDS"),
    ],
)
def test_failures_are_reported_with_episode_and_turn(episodes, draft, check, what) -> None:
    found = check_draft(Draft(draft, QUICK), episodes)
    assert not found.passed and {failure.check for failure in found.failures} <= {check, "bounded"}
    assert any(what in str(failure) for failure in found.failures), [str(failure) for failure in found.failures[:4]]


@pytest.fixture(scope="module")
def blocks(episodes):
    """The state blocks of the world's own tracker for the same episodes."""
    found, failed = render_fields(WORLD, WORLD.tracker_of("full"), episodes, WORLD.tasks_of("train", 12, 0, ["pick"]))
    assert not failed and set(found) == set(episodes)
    return found


def test_rewards_over_a_builtin_tracker_pass_all_checks(episodes, blocks) -> None:
    found = check_draft(Draft(drafts.OWN_REWARDS, QUICK, blocks), episodes)
    assert found.passed, [str(failure) for failure in found.failures[:3]]
    assert found.verdicts() == dict.fromkeys(("reads", "runs", "deterministic", "rewards"), "held")
    won = next(e for e in episodes if e.success)
    assert blocks[won][-1]["subgoal"] == "done" and len(blocks[won]) == len(won.actions) + 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("old", "new", "check", "what"),
    [
        (' and not before["came_up"].get("took")', " or True", "rewards", "took adds up to"),
        ('"placed": 1.0}\n\n', '"placed": 2.0}\n\n', "rewards", "placed adds up to 1 in a won episode, and the claim is 2"),
        ('before["subgoal"] !=', 'before["phase"] !=', "runs", "turn 1: KeyError: 'phase' (line 10 of the draft)"),
        (
            "return named +",
            "while action.startswith('take'):\n        pass\n    return named +",
            "runs",
            "no answer within 0.5 s",
        ),
        ('named.append("placed")', 'named.append("put")', "rewards", "'put' is no rule of REWARDS"),
        ("named = []", "named = [open('log').read()]", "reads", "line 7: uses open"),
    ],
)
def test_wrong_rewards_over_a_builtin_tracker_are_detected(episodes, blocks, old, new, check, what) -> None:
    draft = drafts.OWN_REWARDS.replace(old, new)
    assert draft != drafts.OWN_REWARDS
    found = check_draft(Draft(draft, QUICK, blocks), episodes)
    assert {failure.check for failure in found.failures} == {check}
    assert any(what in str(failure) for failure in found.failures), [str(failure) for failure in found.failures[:4]]


def test_draft_with_invisible_characters_is_refused(episodes) -> None:
    """An escape sequence can erase a line in a terminal, and a direction mark can reverse one."""
    for hidden in ("\x1b[2K", "\u202e"):
        found = check_draft(Draft(drafts.GOOD.replace("BOUND = 400", f"BOUND = 400  # {hidden}"), QUICK), episodes)
        assert [str(failure) for failure in found.failures] == ["reads: line 4: a character that cannot be seen"]


def test_set_order_in_the_state_block_is_detected(episodes) -> None:
    """The order of a set of strings differs between processes."""
    draft = drafts.GOOD.replace(
        "', '.join(p[:20] for p in state['checked'])", "', '.join(set(p[:20] for p in state['checked']))"
    )
    assert draft != drafts.GOOD
    found = check_draft(Draft(draft, QUICK), episodes)
    assert {failure.check for failure in found.failures} == {"deterministic"}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("assert next(iter({'ab', 'cd'})) == 'FIRST'", "it could be loaded, and the second time it cannot: AssertionError"),
        ("BOUND = 400 if next(iter({'ab', 'cd'})) == 'FIRST' else 401", "another BOUND, REWARDS or CLAIMS the second time"),
    ],
)
def test_draft_that_loads_differently_in_another_process_is_detected(episodes, line, what) -> None:
    def order(seed: int) -> str:
        with Sandbox(drafts.GOOD.replace("BOUND = 400", "BOUND = 400 + ord(next(iter({'ab', 'cd'}))[0])"), seed=seed) as fence:
            return {497: "ab", 499: "cd"}[fence.constants["BOUND"]]

    assert order(0) != order(1), "or these words tell the two processes not apart"
    found = check_draft(Draft(f"{drafts.GOOD}\n{line.replace('FIRST', order(0))}\n", QUICK), episodes)
    assert {failure.check for failure in found.failures} == {"deterministic"}
    assert what in str(found.failures[0]), [str(failure) for failure in found.failures[:3]]


@pytest.mark.slow
def test_checks_note_what_the_episodes_cannot_show(episodes) -> None:
    won = [replace(e, seen=e.seen[: len(e.actions)]) for e in episodes if e.success]
    notes = " ".join(check_draft(Draft(drafts.GOOD, QUICK), won).notes)
    assert "12 episodes have no observation after the last action" in notes and "no lost episodes" in notes
    anything = drafts.GOOD.replace('if put.group(1) == new["target"] and put.group(2) == new["destination"]', "if True")
    notes = " ".join(check_draft(Draft(anything, QUICK), [e for e in episodes if e.success]).notes)
    assert "`done` does not depend on the goal" in notes


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"BOUND": 0}, "BOUND must be"),
        ({"BOUND": True}, "BOUND must be"),
        ({"REWARDS": {"bonus": {}}}, "REWARDS must be"),
        ({"REWARDS": {"progress": {"a": -1}}}, "'a' is worth -1"),
        ({"REWARDS": {"progress": {"a": 1}, "error": {"a": 1}}}, "both as progress and as error"),
        ({"CLAIMS": {}}, "CLAIMS is empty"),
        ({"CLAIMS": {"b": 1.0}}, "no rule of progress"),
        ({"CLAIMS": {"a": "1"}}, "'a' is worth '1'"),
    ],
)
def test_invalid_constants_are_refused(constants, message) -> None:
    sound = {"BOUND": 100, "REWARDS": {"progress": {"a": 1.0}, "error": {}}, "CLAIMS": {"a": 1.0}}
    assert DraftRules.of(sound).claims == {"a": 1.0}
    with pytest.raises(DraftError, match=message):
        DraftRules.of({**sound, **constants})


def test_drafted_tracker_implements_the_tracker_interface(episodes) -> None:
    tracker = DraftedTracker(PackagedDraft("tracker", "pick", drafts.GOOD))
    try:
        won = next(e for e in episodes if e.success)
        state = tracker.start(Task("work", "", "pick", "", 0, won.goal), Observation(won.seen[0]))
        total = 0.0
        for action, saw in zip(won.actions, won.seen[1:], strict=True):
            before, state = state, tracker.update(state, action, Transition(Observation(saw)))
            signals = tracker.signals(before, state)
            total += signals.get("progress.subgoal", 0.0)
            assert signals["progress"] == pytest.approx(sum(v for n, v in signals.items() if n.startswith("progress.")))
        assert state.done and total == 2.0 and tracker.render(state).endswith("subgoal: done")
        assert tracker.components == ("progress.subgoal", "progress.new_place", "error.refused", "error.again")
        assert tracker.version != DraftedTracker(PackagedDraft("tracker", "pick", drafts.GOOD + " ")).version
    finally:
        tracker.close()


def test_drafted_rewards_replace_those_of_the_builtin_tracker(episodes) -> None:
    own = WORLD.tracker_of("full")
    tracker = RewardedTracker(own, PackagedDraft("rewards", "pick_rewards", drafts.OWN_REWARDS, "alfworld", "full"), QUICK)
    won = next(e for e in episodes if e.success)
    task, (first, *rest) = Task("alfworld", "", "pick", "", 0, won.goal), map(Observation, won.seen)
    try:
        state, plain, total = tracker.start(task, first), own.start(task, first), 0.0
        for action, saw in zip(won.actions, rest, strict=True):
            transition = Transition(saw, success=action == won.actions[-1])
            before, state, plain = state, tracker.update(state, action, transition), own.update(plain, action, transition)
            assert tracker.render(state) == own.render(plain), "the agent reads the world's own block"
            total += tracker.signals(before, state)["progress"]
        assert total == 1.5 and tracker.version.startswith(f"{own.version}+pick_rewards-")
    finally:
        tracker.close()


@pytest.mark.slow
def test_hanging_tracker_restarts_with_the_next_episode() -> None:
    tracker = DraftedTracker(PackagedDraft("tracker", "pick", drafts.NEVER_ENDS), QUICK)
    task = Task("work", "", "pick", "", 0, "put a mug in shelf.")
    try:
        for _ in range(2):
            state = tracker.start(task, Observation("a room"))
            with pytest.raises(DraftError, match="the drafted tracker pick: no answer"):
                tracker.update(state, "take mug 1 from shelf 1", Transition(Observation("You pick up the mug 1.")))
    finally:
        tracker.close()


def test_sandbox_process_is_replaced_in_the_middle_of_an_episode(episodes, monkeypatch) -> None:
    monkeypatch.setattr("tacit.modules.drafting.tracker.CALLS_PER_PROCESS", 2)
    tracker, opened = DraftedTracker(PackagedDraft("tracker", "pick", drafts.GOOD)), []
    monkeypatch.setattr("tacit.modules.drafting.tracker.Sandbox", lambda *a, **k: opened.append(Sandbox(*a, **k)) or opened[-1])
    won = next(e for e in episodes if e.success)
    state = tracker.start(Task("work", "", "pick", "", 0, won.goal), Observation(won.seen[0]))
    for action, saw in zip(won.actions, won.seen[1:], strict=True):
        state = tracker.update(state, action, Transition(Observation(saw)))
    tracker.close()
    assert state.done and len(opened) == (len(won.actions) + 2) // 2 and not any(fence.alive for fence in opened)


@pytest.mark.slow
def test_failures_are_sent_to_the_model_until_a_draft_passes(episodes) -> None:
    offered, attempts, drafts_shown, reports = [drafts.READS_FILES, drafts.ALWAYS_DONE, drafts.GOOD], [], [], []

    def ask(before: str, failed: str, attempt: int) -> str:
        attempts.append((before, failed))
        return offered[attempt]

    drafted = draft_until_valid(ask, 3, episodes, lambda text, n: drafts_shown.append(text), lambda: True, reports.append)
    assert drafted.text == drafts.GOOD and drafted.report and drafted.report.passed and drafts_shown == offered
    assert attempts[0] == ("", "") and attempts[1][0] == drafts.READS_FILES and "reads: line 1: imports os" in attempts[1][1]
    assert "done, and it was not won yet" in attempts[2][1] and [report.passed for report in reports] == [False, False, True]


def test_unapproved_draft_is_not_run(episodes, monkeypatch) -> None:
    monkeypatch.setattr("tacit.modules.drafting.draft.check_draft", lambda *more: pytest.fail("it was run"))
    order = []
    drafted = draft_until_valid(
        lambda *more: drafts.GOOD,
        3,
        episodes,
        lambda text, n: order.append("shown"),
        lambda: bool(order.append("approval")),
        lambda found: pytest.fail("it was reported on"),
    )
    assert drafted.report is None and order == ["shown", "approval"]


def test_prompt_contains_examples_and_the_answer_a_code_block(episodes) -> None:
    examples = choose_examples(episodes, 6)
    assert [e.success for e in examples].count(False) == 2 and len({e.goal for e in examples[:4]}) == 4
    text = build_prompt("pick", examples, list_action_kinds(episodes)).text
    assert examples[0].goal in text and "It was lost." in text and "go to " in text and "CLAIMS" in text
    again = build_prompt("pick", examples, [], drafts.ALWAYS_DONE, "- done: too early").text
    assert "return True" in again and "- done: too early" in again
    assert extract_code(f"<think>```python\nx\n```</think>{drafts.fenced(drafts.GOOD)}") == drafts.GOOD.strip() + "\n"
    assert extract_code("BOUND = 1") == "BOUND = 1\n"
