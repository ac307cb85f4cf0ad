"""EpisodeJudge: grades become rewards, answers are cached, costs are counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from chat_server import says, serving
from guessing import SAME
from scripted import TASK, ScriptedPolicy, make_group

import tacit
from tacit.companions.answers import FILE, Answer, AnswerCache
from tacit.companions.judge import EpisodeJudge, parse_grade, render_question
from tacit.core.errors import TacitError
from tacit.core.types import Group, IterationInfo
from tacit.methods.judge import Judge

SMALL = {
    "groups": 2, "group_size": 2, "kl": 0.0, "tasks": 20, "lr": 1e-3, "iterations": 2, "checkpoint_every": 1,
    "tiny": {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2}, "engine": {"threads": 1},
    "evaluation": {"tasks": 2, "every": 0},
}  # fmt: skip


def two_groups() -> list[Group]:
    """Two groups of two different episodes."""
    groups = []
    for name in "ab":
        group = make_group([[1], [1, 1]], success=[True, False], task=replace(TASK, id=name, goal=f"goal {name}"))
        groups.append(group)
    return groups


def by_success(prompt: str, seed: int) -> str:
    return "Well done.\ngrade: 9" if "It succeeded." in prompt else "Lost its way.\n**Grade:** 2.5"


@pytest.mark.parametrize(
    ("text", "grade"),
    [("grade: 7", 7.0), ("Grade = 2.5.", 2.5), ("grade: 3\nno, grade: 4", 4.0), ("**grade:** **8**", 8.0), ("grade: 10", 10.0),
     ("grade: 11", None), ("seven", None), ("", None), ("upgrade the agent to 7", None)],
)  # fmt: skip
def test_parse_grade_reads_the_last_valid_grade(text, grade):
    assert parse_grade(text) == grade


def test_grade_is_paid_at_the_last_step(tmp_path):
    judge = EpisodeJudge("Be quick.", lambda: ScriptedPolicy(by_success), tmp_path, weight=2.0)
    groups = two_groups()
    metrics = judge.observe(groups, None, IterationInfo())
    assert [r.flow_N.tolist() for r in judge(groups)] == [[1.8, 0.0, 0.5]] * 2
    assert metrics["judge_grade"] == pytest.approx(5.75) and metrics["judge_asked"] == 4 and metrics["judge_unread"] == 0
    assert metrics["judge_prompt_tokens"] > 0 and metrics["judge_completion_tokens"] > 0


def test_judge_prompt_has_rubric_task_and_turns():
    text = render_question("Be quick.", two_groups()[0].trajectories[1]).text
    assert all(part in text for part in ("Rubric: Be quick.", "goal a", "Turn 2. It saw: here\nIt did: act", "did not succeed"))
    assert text.endswith("grade: N")


def test_missing_grade_becomes_the_group_mean(tmp_path):
    def mumbling(prompt, seed):
        return "hm" if "It succeeded." in prompt else "grade: 4"

    judge = EpisodeJudge("r", lambda: ScriptedPolicy(mumbling), tmp_path, weight=10.0)
    groups = two_groups()
    assert judge.observe(groups, None, IterationInfo())["judge_unread"] == 0.5
    assert [r.outcomes_G().tolist() for r in judge(groups)] == [[4.0, 4.0]] * 2
    mute = EpisodeJudge("r", lambda: ScriptedPolicy(lambda *_: ""), tmp_path / "mute")
    mute.observe(groups, None, IterationInfo())
    assert [r.outcomes_G().tolist() for r in mute(groups)] == [[0.0, 0.0]] * 2


def test_answers_are_cached_also_after_a_kill(tmp_path):
    first = ScriptedPolicy(by_success)
    EpisodeJudge("r", lambda: first, tmp_path).observe(two_groups(), None, IterationInfo())
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])  # killed in the middle of the fourth
    again = ScriptedPolicy(by_success)
    judge = EpisodeJudge("r", lambda: again, tmp_path)
    metrics = judge.observe(two_groups(), None, IterationInfo())
    assert sum(map(len, again.calls)) == 1 == metrics["judge_asked"] and len(AnswerCache(tmp_path)) == 4
    assert judge.observe(two_groups(), None, IterationInfo())["judge_asked"] == 0
    other = ScriptedPolicy(by_success)
    EpisodeJudge("another rubric", lambda: other, tmp_path).observe(two_groups(), None, IterationInfo())
    assert sum(map(len, other.calls)) == 4
    assert next(iter(AnswerCache(tmp_path).values())) == Answer(**{k: v for k, v in json.loads(lines[0]).items() if k != "key"})


def test_run_with_endpoint_judge_counts_tokens_and_resumes(tmp_path):
    """Grades and token counts come over HTTP; a resumed run asks only new questions."""
    with serving(lambda body: (200, says("fine.\ngrade: 5", prompt_tokens=100, completion_tokens=10))) as server:
        served = {"judge": {"model": "some-judge", "engine": {"name": "chat", "url": server.url}}}
        settings = {**SMALL, "policies": served, "rubric": "Be brief.", "judge_weight": 4.0}
        run = tacit.train(
            SAME,
            "judge",
            "tiny-0.5m",
            out=tmp_path / "run",
            quiet=True,
            callbacks=lambda e: (e.stage, e.step) == ("rl", 1),
            **settings,
        )
        count = len(server.requests) - 1  # without the health check before the first episode
        run.resume(quiet=True)
    first, second = run.metrics("rl", rows=True)
    questions = [each for each in server.requests if "Be brief." in each["messages"][0]["content"]]
    assert first["judge_asked"] == count == len((run.path / "judge" / FILE).read_text().splitlines()[:count])
    assert (first["judge_prompt_tokens"], first["judge_completion_tokens"]) == (100 * count, 10 * count)
    assert first["reward"] >= 2.0
    assert len(questions) == first["judge_asked"] + second["judge_asked"] == len(server.requests) - 2
    assert questions[0]["model"] == "some-judge"
    assert not (run.path / "checkpoints" / "rl-000002" / "policies").exists(), "the judge is not trained"


def test_local_judge_combines_with_rloo(tmp_path):
    run = tacit.train(
        SAME, ["rloo", "judge"], "tiny-0.5m", out=tmp_path / "run", quiet=True, judge_tokens=4,
        policies={"judge": {"model": "tiny-0.5m"}}, judge_cache=str(tmp_path / "answers"), **SMALL,
    )  # fmt: skip
    assert run.metrics("rl", rows=True)[0]["judge_unread"] == 1.0 and (tmp_path / "answers" / FILE).is_file()


def test_rubric_is_read_from_text_or_file(tmp_path):
    (tmp_path / "rubric.md").write_text("# Be kind")
    assert Judge(rubric=str(tmp_path / "rubric.md")).read_rubric() == "# Be kind"
    assert Judge(rubric="Be kind.").read_rubric() == "Be kind."
    with pytest.raises(TacitError, match=r"cannot read the rubric .*missing\.txt: No such file"):
        Judge(rubric=str(tmp_path / "missing.txt")).read_rubric()
    with pytest.raises(TacitError, match="rubric is empty"):
        Judge(rubric=" ").build(SAME)
