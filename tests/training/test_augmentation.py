"""Imitation on renamed demonstrations (`sft.renamed`) and on questions about random play (`sft.questions`)."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from scripted import Words

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.types import Prompt
from tacit.prompts.history import History, StateBlock
from tacit.rollout.replay import Turn, play_episode, render_turns
from tacit.training import demonstrations
from tacit.training.demonstrations import MAX_SHIFT, Renaming, ask_questions, demonstrate, rename_turns
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")
CONTEXT = StateBlock(WORLD.wording("terse"), WORLD.tracker)
TASKS = WORLD.tasks("train", 12, 5)


def expert_turns() -> list[Turn]:
    make, live = WORLD.expert(None), WORLD.make()
    return [turn for task in TASKS for turn in render_turns(CONTEXT, task, play_episode(live, task, make(task), 50))]


def test_renaming_by_hand():
    renaming = Renaming(WORLD.names, {"mug": "pen", "pen": "cup", "desk": "bed"}, {"mug": 3, "desk": 2, "drawer": -1})
    text = (
        "put a mug in desk.\nseen: mug 2 at desk 1\nunchecked: drawer 2-4 6, desk 1\npenthouse: pen 3, a mugshot > take mug 2"
    )
    after = "put a pen in bed.\nseen: pen 5 at bed 3\nunchecked: drawer 1-3 5, bed 3\npenthouse: cup 3, a mugshot > take pen 5"
    renaming = replace(renaming, shifts={**renaming.shifts, "pen": 0})
    assert renaming.apply(text) == after


def test_renaming_is_reversible():
    """No two object kinds are merged and all numbers stay positive."""
    for turn in expert_turns():
        text = f"{turn.prompt.text}\n{turn.action}"
        known = sorted({"vase", "lamp", *(match[1] for match in WORLD.names.finditer(text))})
        renaming = Renaming.draw(WORLD.names, text, known, Random(len(text)))
        renamed = renaming.apply(text)
        assert all(int(n) >= 1 for n in re.findall(r"\d+", renamed))
        assert all(shift <= MAX_SHIFT for shift in renaming.shifts.values())
        back = {new: old for old, new in renaming.kinds.items()}
        shifts = {renaming.kinds.get(kind, kind): -shift for kind, shift in renaming.shifts.items()}
        assert Renaming(WORLD.names, back, shifts).apply(renamed) == text


def test_rule_agent_acts_alike_on_renumbered_prompts(monkeypatch):
    """With kinds unchanged, the right action for a renumbered prompt is the renumbered right action."""
    monkeypatch.setattr(demonstrations, "EXCHANGED_SHARE", 0.0)
    turns = expert_turns()
    renamed, changed = rename_turns(turns, WORLD.names, Random(0)), 0
    for turn, other in zip(turns, renamed, strict=True):
        if WORLD.reader(turn.prompt.text) == turn.action:
            assert WORLD.reader(other.prompt.text) == other.action
            changed += other.action != turn.action
    assert changed > 40


def test_renamed_copies_follow_the_demonstrations_and_differ():
    plain = demonstrate(WORLD, TASKS, CONTEXT, Words(), 50)
    words = Words()
    more = demonstrate(WORLD, TASKS, CONTEXT, words, 50, renamed=2)
    assert len(more) == 3 * len(plain) and more.won == plain.won
    texts = [words.decode(tokens) for tokens in more.prompts]
    n = len(plain)
    assert texts[:n] == [turn.prompt.text for turn in expert_turns()]
    assert sum(a != b for a, b in zip(texts[:n], texts[n : 2 * n], strict=True)) == n
    assert texts[n : 2 * n] != texts[2 * n :]
    again = demonstrate(WORLD, TASKS, CONTEXT, Words(), 50, renamed=2)
    assert all(np.array_equal(a, b) for a, b in zip(more.prompts, again.prompts, strict=True))


def test_every_section_of_a_prompt_is_renamed():
    prompt = Prompt(
        "task desk 1", "now desk 1", "request desk 1", ("past desk 1",), "note desk 1", "step desk 1", now_alone="alone desk 1"
    )
    renamed = Renaming(WORLD.names, {"desk": "bed"}, {"desk": 4}).apply_to(prompt)
    assert renamed.text == prompt.text.replace("desk 1", "bed 5") and renamed.now_alone == "alone bed 5"


def test_questions_follow_prompts_of_random_play():
    words = Words()
    questions = ask_questions(WORLD, TASKS, CONTEXT, words, 4, seed=0)
    assert 40 < len(questions) <= 4 * 24 and questions.too_long == 0
    prompts = [words.decode(tokens) for tokens in questions.prompts]
    answers = [words.decode(tokens[:-1]) for tokens in questions.completions]
    goals = {turn.prompt.task for turn in expert_turns()}
    assert all(prompt.endswith("?") and prompt.split("\n")[0] in goals for prompt in prompts)
    # Longer answers are copied from words of the prompt.
    copied = [set(answer.split()) <= set(re.findall(r"\w+", prompt)) for prompt, answer in zip(prompts, answers, strict=True)]
    assert sum(copied) > 0.5 * len(copied)
    again = ask_questions(WORLD, TASKS, CONTEXT, Words(), 4, seed=0)
    assert [len(p) for p in again.prompts] == [len(p) for p in questions.prompts]


def test_chat_prompts_are_refused():
    full = History(WORLD.wording("full"), turns=1, admissible=True, style="tags", chat=True)
    with pytest.raises(TacitError, match=r"sft.renamed needs plain prompts.*--no-chat"):
        demonstrate(WORLD, TASKS, full, Words(), 50, renamed=1)


def test_world_without_numbered_names_is_refused(tmp_path, capsys):
    command = f"train --world countdown --model tiny --sft.steps 2 --sft.renamed 2 --out {tmp_path / 'run'}"
    assert main(command.split()) != 0
    errors = capsys.readouterr().err
    assert "sft.renamed = 2: world 'countdown' has no numbered names to exchange" in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_run_with_renamed_copies_and_questions(tmp_path, capsys):
    out = tmp_path / "run"
    command = (
        "train --world alfworld --model tiny --state-block --history 1 --wording terse --style bare --iterations 0 "
        "--sft.steps 2 --sft.tasks 3 --sft.renamed 2 --sft.questions 2 --evaluation.tasks 2 --max-steps 3 "
        f"--engine.device cpu --out {out}"
    )
    assert main(command.split()) == 0
    output = capsys.readouterr().out
    assert (
        "including 2 copies of each with other names" in output
        and "answers to questions about 2 episodes of random play" in output
    )
