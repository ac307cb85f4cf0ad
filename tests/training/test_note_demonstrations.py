"""Rule-based demonstrations of reading notes and writing bank entries, and their share of wrong examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import Words

from tacit.companions.experience.extractor import parse_operations, render_distill_prompt
from tacit.companions.experience.manager import parse_verdict
from tacit.core.errors import TacitError
from tacit.methods import get_method
from tacit.rollout.replay import build_trajectory, play_episode
from tacit.training.demonstrations import demonstrate_notes
from tacit.training.settings import SupervisedSettings
from tacit.worlds import get_environment
from tacit.worlds.errands.world import door_of

WORLD = get_environment("errands")
TASKS = WORLD.tasks("elsewhere", 300, 0)
CONTEXT = get_method("grpo")().with_prompt(wording="terse", style="bare", admissible=False, history=0).context(WORLD)


def show(words=None, world=WORLD, **settings):
    words = words or Words()
    examples = demonstrate_notes(world, TASKS, CONTEXT, words, world.max_steps, SupervisedSettings(noise=0.5, **settings), 0)
    pairs = [(words.decode(p), words.decode(c)) for p, c in zip(examples.prompts, examples.completions, strict=True)]
    return examples, pairs


def test_entry_examples_state_hindsight_in_the_extractors_format():
    examples, pairs = show(entries=300)
    assert len(pairs) == 300 and examples.too_long == 0
    for prompt, answer in pairs:
        (operation,) = parse_operations(answer, "terse", "\nentry: " in prompt)
        assert prompt.endswith("experience:")
        if operation.kind != "return":
            thing, _, door = operation.text.partition(" behind ")
            assert f"> behind {door}: " in prompt and thing in prompt, "entries state only what the episode showed"
    kinds = {parse_operations(answer, "terse", True)[0].kind for _, answer in pairs}
    assert kinds >= {"add", "update"}


def test_entry_example_prompt_equals_the_extractors_prompt():
    (prompt, _) = show(entries=1)[1][0]
    task = TASKS[0]
    straight = build_trajectory(task, play_episode(WORLD.make(), task, WORLD.expert()(task), 3))
    assert render_distill_prompt(straight, "", "terse", 2000).splitlines()[0] == prompt.splitlines()[0] == task.goal


def test_astray_sets_the_share_of_wrong_entries():
    def unseen(pairs):
        return [
            f"> behind {answer.partition(' behind ')[2]}: " not in prompt for prompt, answer in pairs if " behind " in answer
        ]

    wrong = unseen(show(entries=600, mismatched=0.5)[1])
    assert 0.3 < sum(wrong) / len(wrong) < 0.5, "about half; some entries of other episodes happen to be true"
    assert not any(unseen(show(entries=200)[1]))


def test_note_examples_name_the_door_and_are_judged():
    _, pairs = show(noted=300, mismatched=0.4)
    judged = [(p, a) for p, a in pairs if p.endswith("accept, refine or reject:")]
    verdicts = [parse_verdict(answer, "x")[0] for _, answer in judged]
    assert len(judged) == 300 and 0.3 < verdicts.count("reject") / 300 < 0.5
    for i, (prompt, verdict) in enumerate(judged):
        goal, entry = prompt.splitlines()[0], prompt.splitlines()[1].removeprefix("entry: ")
        task = TASKS[i]
        right = f"{task.data['thing']} behind {door_of(task.data['thing'], task.data['town'])}"
        assert goal == task.goal and (entry == right) >= (verdict == "accept")
    first = [(p, a) for p, a in pairs if "<note>" in p and p.endswith("street")]
    assert len(first) > 50 and all(a.startswith("open ") for _, a in first)


def test_long_notes_are_dropped_and_worlds_without_hindsight_are_refused():
    examples, pairs = show(Words(context_limit=30), entries=50)
    assert examples.too_long == 50 and not pairs
    with pytest.raises(TacitError, match="has no hindsight"):
        show(world=replace(WORLD, hindsight=None), entries=1)


HOUSEHOLD = get_environment("alfworld")


@pytest.mark.slow
def test_step_notes_precede_the_request_and_agree_with_the_expert():
    tasks = HOUSEHOLD.tasks("train", 6, 0)
    context = get_method("grpo")().with_prompt(state_block=True, wording="terse", style="bare", history=1).context(HOUSEHOLD)

    def pairs(mismatched):
        words, settings = Words(), SupervisedSettings(step_notes=60, mismatched=mismatched)
        examples = demonstrate_notes(HOUSEHOLD, tasks, context, words, 30, settings, 0)
        assert examples.episodes == examples.won == 60 and len(examples) > 60
        return [(words.decode(p), words.decode(c)) for p, c in zip(examples.prompts, examples.completions, strict=True)]

    def agree(found):
        notes = [prompt.partition("<note>")[2].partition("</note>")[0].split() for prompt, _ in found]
        assert all(notes) and all(prompt.index("<note>") > 0.3 * len(prompt) for prompt, _ in found), "after the history"
        return sum(note == answer.split() for note, (_, answer) in zip(notes, found, strict=True)) / len(found)

    assert agree(pairs(0.0)) > 0.9, "the notes come from the imitated expert"
    assert 0.3 < agree(pairs(0.5)) < 0.7
