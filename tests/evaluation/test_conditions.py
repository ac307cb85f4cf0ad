"""Evaluation under a condition: the note is in the prompts, the score, the journal's name and the records."""

from __future__ import annotations

import json
from dataclasses import replace

from scripted import ScriptedPolicy, solve_countdown

from tacit.core.protocols import Sampling
from tacit.core.types import PLAIN, Condition
from tacit.evaluation.evaluate import Journal, Measurement, SingleAgent, evaluate, play_panel
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import score_panel
from tacit.prompts.history import History
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import condition_from_record, trajectory_from_record, trajectory_record
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = History(WORLD.wording("terse"), turns=1, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 6)
RULES = Rules(Sampling(), 4)
GUIDED = Condition("guided", "Multiply first.", "bank/3")


def solve_if_guided(prompt: str, seed: int) -> str:
    return solve_countdown(prompt) if "<note>" in prompt else "hm"


def measure(rules: Rules):
    policy = ScriptedPolicy(solve_if_guided)
    score, played = evaluate(PANEL, rules, InProcessPool(WORLD.make), TERSE, policy)
    return score, played, policy


def test_condition_is_in_prompts_and_score():
    plain, alone, _ = measure(RULES)
    guided, noted, policy = measure(replace(RULES, condition=GUIDED))
    assert (plain.success, guided.success) == (0.0, 1.0)
    assert all("<note>\nMultiply first.\n</note>" in prompt for call in policy.calls for prompt, _ in call)
    assert plain.to_json()["condition"] == {"name": "plain"}
    assert guided.to_json()["condition"] == {"name": "guided", "note": "Multiply first.", "entry": "bank/3"}
    assert "under condition guided" in str(guided) and "condition" not in str(plain)
    assert [t.seed for t in noted] == [t.seed for t in alone], "both meet the same luck"
    assert {t.condition for t in noted} == {GUIDED} and {t.condition for t in alone} == {PLAIN}


def test_condition_may_depend_on_the_task():
    def advise(task):
        return Condition("guided", f"The target is {task.data['target']}.") if task.data["target"] > 100 else PLAIN

    score, played, _ = measure(replace(RULES, condition=advise))
    large = [task.data["target"] > 100 for task in PANEL.tasks]
    assert any(large) and not all(large)
    assert [t.success for t in played] == large
    assert score.condition["name"] == "guided+plain" and len(score.condition["hash"]) == 16
    other = replace(RULES, condition=lambda task: replace(advise(task), note="Look."))
    assert other.describe_condition(PANEL.tasks)["hash"] != score.condition["hash"]
    assert replace(RULES, condition=lambda task: GUIDED).describe_condition(PANEL.tasks) == replace(
        RULES, condition=GUIDED
    ).describe_condition(PANEL.tasks)


def measured(rules: Rules) -> Measurement:
    return Measurement.of(PANEL, rules, "a policy", "f00d")


def test_journal_belongs_to_one_condition(tmp_path):
    guided, other = replace(RULES, condition=GUIDED), replace(RULES, condition=replace(GUIDED, note="Add first."))
    names = {measured(rules).file_name for rules in (RULES, guided, other)}
    assert len(names) == 3
    journal = Journal(tmp_path, measured(guided))
    route = SingleAgent(TERSE, ScriptedPolicy(solve_if_guided))
    whole = play_panel(PANEL, guided, InProcessPool(WORLD.make), route, journal=journal)
    head = json.loads(journal.path.read_text().splitlines()[0])
    assert head["condition"] == {"name": "guided", "note": "Multiply first.", "entry": "bank/3"}
    silent = ScriptedPolicy(lambda prompt, seed: "never called")
    again = play_panel(
        PANEL, guided, InProcessPool(WORLD.make), SingleAgent(TERSE, silent), journal=Journal(tmp_path, measured(guided))
    )
    assert not silent.calls and [t.condition for t in again] == [GUIDED] * 6
    assert score_panel(PANEL, again, guided) == score_panel(PANEL, whole, guided)


def test_plain_condition_does_not_change_the_settings_hash():
    assert replace(measured(RULES), condition={"name": "plain"}).settings_hash == measured(RULES).settings_hash
    assert measured(RULES).settings_hash == measured(replace(RULES, condition=lambda task: PLAIN)).settings_hash


def test_condition_is_recorded_and_read_back():
    _, (trajectory, *_), _ = measure(replace(RULES, condition=GUIDED))
    record = json.loads(json.dumps(trajectory_record(trajectory)))
    assert (record["condition"], record["note"], record["entry"]) == ("guided", "Multiply first.", "bank/3")
    assert trajectory_from_record(record, trajectory.task).condition == GUIDED
    _, (alone, *_), _ = measure(RULES)
    assert "note" not in trajectory_record(alone) and condition_from_record(trajectory_record(alone)) == PLAIN
    unnamed = Condition("plain", "but with a note")
    assert condition_from_record(trajectory_record(replace(alone, condition=unnamed))) == unnamed
    assert condition_from_record({"condition": "guided"}) == Condition("guided"), "from before notes were kept"
