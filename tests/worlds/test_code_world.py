"""The code world: episodes, experts, tracker, skills, hindsight, and deterministic outputs."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from scripted import make_step

from tacit.core.errors import TacitError
from tacit.core.hindsight import tracker_signals
from tacit.core.types import Observation, StopReason, Trajectory
from tacit.core.world import format_of
from tacit.worlds.code import ENVIRONMENT, code_environment
from tacit.worlds.code.prepare import MUTANT
from tacit.worlds.code.skills import BOUND, SKILLS, Oracle, Rule, Search, find_hunks, skill
from tacit.worlds.code.tasks import PACKAGED, broken_files, make_task, open_folder, read_source, record_of, tasks
from tacit.worlds.code.tools import read_line
from tacit.worlds.code.world import CPU_S, CodeWorld, read_pytest


@pytest.fixture
def world(bench):
    opened = CodeWorld(bench)
    yield opened
    opened.close()


def first(family: str = "", split: str = "train"):
    found = tasks(split, 1000, 0)
    return next(task for task in found if not family or task.family == family)


def play(world, task, name: str) -> Trajectory:
    """Play one episode with the named expert."""
    expert, observation, steps = ENVIRONMENT.experts[name](task), world.reset(task), []
    while True:
        action = expert.act(observation)
        transition = world.step(action)
        step = replace(
            make_step(), observation=observation, action=action, effective=transition.effective, label=transition.label
        )
        steps.append(step)
        observation = transition.observation
        if transition.done:
            stop = StopReason.SUCCESS if transition.success else StopReason.FAILURE
            return Trajectory(task, tuple(steps), transition.success, transition.score, stop, observation)


def test_episode_with_the_correct_edit_succeeds(world):
    task = first("comparison")
    record, _ = record_of(task)
    opening = world.reset(task).text
    assert opening.startswith("/testbed, two levels:") and record.edits[0].path in opening
    failed = world.step(f"bash pytest -q {' '.join(record.test_files)}")
    assert "failed" in failed.observation.text and failed.observation.text.endswith("[exit status 1]")
    assert world.step("nonsense").effective is False
    (hunk,) = find_hunks(*record_of(task))
    assert not world.step(hunk.edit).done
    assert "passed" in world.step(f"bash pytest -q {' '.join(record.test_files)}").observation.text
    answer = world.step("submit")
    assert answer.done and answer.success and answer.score == 1.0
    text = answer.observation.text
    count = len(record.fail_to_pass)
    assert f"FAIL_TO_PASS: {count} of {count} pass." in text and "--- a/" in text and "+++ b/" in text


def test_submit_without_change_fails(world):
    world.reset(first())
    answer = world.step("submit")
    assert answer.done and not answer.success and answer.label == "no_change" and answer.score == 0


def test_reset_restores_sources_and_close_removes_workspace(world, bench):
    task = first()
    path = record_of(task)[0].edits[0].path
    world.reset(task)
    world.step(f"bash echo '# mine' >> {path}")
    world.reset(task)
    assert "# mine" not in world.step(f"bash cat {path}").observation.text
    world.close()
    assert not [entry for entry in bench.runner.sandbox.folder.iterdir() if entry.name.startswith("work-")]
    with pytest.raises(TacitError, match="reset"):
        world.step("submit")


@pytest.mark.slow
def test_hanging_command_is_killed(world, bench, monkeypatch):
    from tacit.sandbox import Limits

    monkeypatch.setattr(bench.runner.sandbox, "limits", Limits(wall_s=1))
    world.reset(first())
    assert world.step("bash sleep 60").observation.text == "[killed: time limit]"
    assert world.step("bash echo on").observation.text == "on\n[exit status 0]"
    monkeypatch.undo()


@pytest.mark.slow
def test_endless_loop_is_stopped_by_its_cpu_time(world, bench, monkeypatch):
    assert bench.runner.limits.cpu_s == CPU_S == 10 and MUTANT.cpu_s < CPU_S
    for sandbox in (bench.runner.sandbox, bench.runner.warm_sandbox):
        monkeypatch.setattr(sandbox, "limits", replace(sandbox.limits, wall_s=120, cpu_s=2))
    task = first("comparison")
    record, _ = record_of(task)
    path, test = record.edits[0].path, record.test_files[0]
    stopped = "Stopped: used more than 10 s of CPU time"
    seen = []
    for _ in range(2):
        world.reset(task)
        world.step(f"insert {path} 0 while True: pass")
        tests = world.step(f"bash pytest -q {test}").observation.text
        assert tests == f"[{stopped}]"
        shell = world.step(f"bash pytest -q {test} | tail -3; echo on").observation.text
        assert shell == f"[{stopped}]"
        graded = world.step("submit")
        assert graded.done and not graded.success and graded.score == 0 and graded.label == "cpu"
        assert f"\n{stopped}.\n" in graded.observation.text
        seen.append(graded.observation.text)
    assert seen[0] == seen[1]
    world.reset(task)
    assert world.step("bash echo on").observation.text == "on\n[exit status 0]"


def test_outputs_are_deterministic(world):
    task = first()
    script = (
        "view .", "bash ls -l && python3 -c 'print(object()); import time; print(time.time() > 0)'", "bash pytest -q", "submit",
    )  # fmt: skip
    seen = []
    for _ in range(2):
        world.reset(task)
        seen.append([world.step(action).observation.text for action in script])
    assert seen[0] == seen[1] and "0x0" in seen[0][1]


def test_read_pytest_recognizes_only_plain_pytest_commands():
    assert read_pytest("pytest") == [] and read_pytest("python -m pytest -q tests/test_a.py::test_b") == [
        "-q",
        "tests/test_a.py::test_b",
    ]
    assert read_pytest("cd /testbed && pytest -x 2>&1") == ["-x"]
    for other in (
        "pytest | tail -1",
        "pytest; rm x",
        "pytest $(ls)",
        "pytester",
        "echo pytest",
        "FOO=1 pytest",
        "pytest > out",
    ):
        assert read_pytest(other) is None


@pytest.mark.parametrize("family", ["comparison", "negation", "off_by_one", "several"])
def test_oracle_solves_each_family(world, family):
    split = "train" if any(t.family == family for t in tasks("train", 1000, 0)) else "other_packages"
    task = first(family, split)
    expert, observation = Oracle(task), world.reset(task)
    for _ in range(12):
        transition = world.step(expert.act(observation))
        observation = transition.observation
        if transition.done:
            break
    assert transition.success


def test_oracle_recovers_after_other_actions(world):
    task = first("several") if any(t.family == "several" for t in tasks("train", 1000, 0)) else first()
    expert, observation = Oracle(task), world.reset(task)
    for stray in ("bash ls", "view .", "bash cat nothing"):
        observation = world.step(stray).observation
    for _ in range(14):
        transition = world.step(expert.act(observation))
        observation = transition.observation
        if transition.done:
            break
        observation = world.step("bash ls").observation if "Edited" in observation.text else observation
    assert transition.success


def test_oracle_edits_restore_every_packaged_task():
    folder = open_folder(PACKAGED)
    for record in folder.records:
        texts = broken_files(record, folder.tree(record))
        for hunk in find_hunks(record, folder):
            arguments = read_line(hunk.edit).arguments
            assert texts[hunk.path].count(arguments["old_str"]) == 1, record.id
            texts[hunk.path] = texts[hunk.path].replace(arguments["old_str"], arguments["new_str"])
        assert all(text == read_source(folder.tree(record) / path) for path, text in texts.items()), record.id


@pytest.mark.slow
def test_rule_agent_edits_where_the_traceback_points(world):
    task = next(t for t in tasks("train", 1000, 0) if t.data["record"]["package"] == "spans" and t.family == "comparison")
    expert, observation = Rule(task), world.reset(task)
    kinds = []
    for _ in range(8):
        action = expert.act(observation)
        kinds.append(skill(action))
        transition = world.step(action)
        observation = transition.observation
        if transition.done:
            break
    assert kinds[:3] == ["TEST", "EDIT-SOURCE", "TEST"] and (transition.done or "UNDO" in kinds)
    assert Rule(replace(task, data={**task.data, "tests": "hidden"})).act(Observation("")) == "submit"


@pytest.mark.slow
def test_oracle_wins_and_random_baselines_lose(world):
    chosen = tasks("test", 6, 0)
    won = {}
    for name in ("oracle", "random", "none"):
        won[name] = 0
        for task in chosen:
            expert, observation = ENVIRONMENT.experts[name](task), world.reset(task)
            for _ in range(20):
                transition = world.step(expert.act(observation))
                observation = transition.observation
                if transition.done:
                    break
            won[name] += transition.success
    assert won == {"oracle": 6, "random": 0, "none": 0}


def test_tracker_phases_and_signals_over_an_episode(world):
    task = first("comparison")
    record, folder = record_of(task)
    (hunk,) = find_hunks(record, folder)
    tests = f"bash pytest -q {' '.join(record.test_files)}"
    tracker, observation = ENVIRONMENT.tracker, world.reset(task)
    state = tracker.start(task, observation)
    phases, signals = [], []
    for action in (tests, hunk.view, hunk.view, "nonsense", hunk.edit, tests, "submit"):
        transition = world.step(action)
        after = tracker.update(state, action, transition)
        signals.append(tracker.signals(state, after))
        state = after
        phases.append(state.phase)
        assert len(tracker.render(state)) <= BOUND
    assert phases == ["find", "mend", "mend", "mend", "check", "hand_in", "done"]
    assert [name for one in signals for name in one if name.startswith("error.")] == ["error.repeated", "error.unreadable"]
    assert signals[-1]["progress.subgoal"] == 1.0 and signals[5]["progress.fewer_failures"] > 0
    assert "0 failed" in tracker.render(state) and hunk.path in tracker.render(state)


def test_state_block_size_is_bounded(world):
    tracker = ENVIRONMENT.tracker
    task = first()
    observation = world.reset(task)
    state = tracker.start(task, observation)
    for number in range(60):
        transition = world.step(f"create pkg/file{number}.py {'x' * 300}")
        state = tracker.update(state, f"create pkg/file{number}.py {'x' * 300}", transition)
    assert len(tracker.render(state)) <= BOUND


def test_actions_map_to_skills():
    skills = {
        "bash grep -n def a.py": "SEARCH", "bash pytest -q": "TEST", "bash python3 a.py": "RUN", "view .": "SEARCH",
        "view pkg/a.py": "VIEW-SOURCE", "view tests/test_a.py 1 9": "VIEW-TEST", "str_replace pkg/a.py x ==> y": "EDIT-SOURCE",
        "create tests/test_b.py x": "EDIT-TEST", "undo_edit pkg/a.py": "UNDO", "submit": "SUBMIT", "what": None,
    }  # fmt: skip
    assert {action: skill(action) for action in skills} == skills
    assert {name for name in skills.values() if name} <= set(SKILLS)


def test_search_expert_acts_on_observations(world):
    task = next(task for task in tasks("train", 1000, 0) if task.id.endswith("tillbook-0cc4d13890"))
    expert, observation, actions = Search(task), world.reset(task), []
    while not actions or actions[-1] != "submit":
        actions.append(expert.act(observation))
        transition = world.step(actions[-1])
        observation = transition.observation
        assert len(actions) < 12
    assert transition.success
    path = "tillbook/accounts.py"
    assert actions == [
        'bash grep -rn "def settle(" *', f"view {path} 70 95",
        f"str_replace {path}:81 += ==> -=", "bash pytest -q", f"undo_edit {path}",
        f"str_replace {path}:82 debtor ==> left", "bash pytest -q", "submit",
    ]  # fmt: skip
    assert set(actions) - set(Search(task).actions) == {f"view {path} 70 95", "bash pytest -q", "submit"}
    adviser = Search(task)
    adviser.happened("view .")
    view = Observation("/testbed/tillbook/accounts.py, lines 82 to 82 of 83:\n    82\t        debtor[creditor] -= cents")
    assert adviser.act(view) == f"str_replace {path}:82 debtor ==> left", "others make their own mistakes"
    for text in ("[killed: time limit]", "1 error in 0.00s\n[exit status 2]", "7 passed, 3 errors in 0.00s\n[exit status 1]"):
        assert adviser.act(Observation(text)) == f"undo_edit {path}"


def test_search_expert_recovers_from_a_refused_edit(world):
    task = next(task for task in tasks("train", 1000, 0) if task.id.endswith("gridways-0a96d31d7f"))
    expert, observation, seen = Search(task), world.reset(task), []
    for _ in range(14):
        action = expert.act(observation)
        transition = world.step(action)
        seen.append((action, transition.observation.text))
        observation = transition.observation
        if transition.done:
            break
    refused = [i for i, (_, text) in enumerate(seen) if text.startswith("ERROR: old_str does not occur in line")]
    assert refused == [2] and seen[3][0] == seen[0][0] and transition.success


@pytest.mark.slow
def test_search_expert_edits_restore_every_packaged_task():
    folder = open_folder(PACKAGED)
    for record in folder.records:
        texts = broken_files(record, folder.tree(record))
        for *_, action in reversed(Search(make_task(record)).repairs):
            arguments = read_line(action).arguments
            lines = texts[arguments["path"].removeprefix("/testbed/")].split("\n")
            if "line" in arguments:
                number = int(arguments["line"]) - 1
                assert lines[number].count(arguments["old_str"]) == 1, record.id
                lines[number] = lines[number].replace(arguments["old_str"], arguments["new_str"])
                texts[arguments["path"].removeprefix("/testbed/")] = "\n".join(lines)
            else:
                text = "\n".join(lines)
                assert text.count(arguments["old_str"]) == 1, record.id
                texts[arguments["path"].removeprefix("/testbed/")] = text.replace(arguments["old_str"], arguments["new_str"])
        assert all(text == read_source(folder.tree(record) / path) for path, text in texts.items()), record.id


def test_located_issue_names_the_function():
    world = code_environment(issue="located")
    task = next(task for task in world.tasks("train", 1000, 0) if task.id.endswith("tillbook-0cc4d13890"))
    assert task.goal.endswith("The cause is in settle in tillbook/accounts.py.") and not world.panels
    assert ENVIRONMENT.wordings["terse"].task(task).startswith("The cause is in settle in tillbook/accounts.py.")
    with pytest.raises(TacitError, match="located, plain, source"):
        code_environment(issue="easy")


def test_source_issue_shows_the_whole_broken_function():
    tasks = code_environment(issue="source").tasks("train", 1000, 0)
    goal = next(task for task in tasks if task.id.endswith("tillbook-0cc4d13890")).goal
    assert "The cause is in settle in tillbook/accounts.py.\n\n/testbed/tillbook/accounts.py, lines " in goal
    assert goal.endswith("        debtor[creditor] -= cents\n    return payments")  # the defect, and the function's end
    for task in tasks:
        record, folder = record_of(task)
        broken = broken_files(record, folder.tree(record))
        for repair in record.repairs:
            line = broken[repair.path][: repair.start].count("\n")
            assert broken[repair.path].split("\n")[line] in task.goal, task.id


def test_hindsight_and_failure_labels(world):
    task = first("comparison")
    won = play(world, task, "oracle")
    assert won.success and "what solved the issue: str_replace" in ENVIRONMENT.hindsight(won).episode
    lost = play(world, task, "none")
    path = record_of(task)[0].edits[0].path
    assert not lost.success and path in ENVIRONMENT.hindsight(lost).episode
    assert ENVIRONMENT.failure(lost) == "no_change"
    assert ENVIRONMENT.failure(replace(lost, stop=StopReason.STEP_LIMIT)) == "not_submitted"
    assert tracker_signals(won, ENVIRONMENT.tracker)[-1]["progress.subgoal"] == 1.0


def test_full_and_terse_wordings():
    task = first()
    full, terse = ENVIRONMENT.wordings["full"], ENVIRONMENT.wordings["terse"]
    assert task.goal.strip() in full.task(task) and "`pytest` runs them" in full.task(task)
    assert "not in the repository" in full.task(replace(task, data={**task.data, "tests": "hidden"}))
    assert "<function=str_replace_editor>" in full.request("tags") and "==>" in full.request("bare")
    seen = Observation("/testbed/a.py, lines 3 to 4 of 9:\n     3\tx = 1\n     4\ty = 2")
    assert terse.brief(seen) == "a.py\n3 x = 1\n4 y = 2"
    assert len(terse.now(1, Observation("x" * 9000), False)) < 300
    for style in ("tags", "bare", "tools"):
        assert format_of(full, style).parse(format_of(full, style).write("view a.py 1 2")).action == "view a.py 1 2"


def test_hidden_tests_option_hides_test_files(bench):
    world = code_environment(tests="hidden")
    task = world.tasks("train", 1, 0)[0]
    episode = CodeWorld(bench)
    opening = episode.reset(task).text
    assert record_of(task)[0].test_files[0] not in opening
    assert Oracle(task).act(Observation("")).startswith("view")
    episode.close()


@pytest.mark.slow
def test_dead_sandbox_server_is_replaced_in_the_next_episode():
    make = code_environment().make
    try:
        world = make()
        world.reset(first())
    except TacitError as error:
        pytest.skip(str(error))
    make.simulator.runner.sandbox.process.kill()
    make.simulator.runner.sandbox.process.wait()
    with pytest.raises(Exception, match="simulator died"):
        world.step("bash ls")
    assert world.reset(first()).text
    world.close()
    make.close()


def test_background_processes_are_killed(world):
    world.reset(first())
    world.step("bash (setsid nohup sleep 871 >/dev/null 2>&1 &); sleep 0.1")
    assert "sleep 871" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_invalid_tests_setting_is_rejected(world):
    task = make_task(open_folder.__wrapped__(record_of(first())[1].root).records[0])
    with pytest.raises(TacitError, match="shown or hidden"):
        world.reset(replace(task, data={**task.data, "tests": "both"}))
