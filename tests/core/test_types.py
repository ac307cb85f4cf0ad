"""The nouns: prompts in sections, groups in flat views, seeds derived from seeds, skills of an alphabet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_group

from tacit.core.errors import TacitError, unknown
from tacit.core.seeds import derive
from tacit.core.types import Prompt, StopReason, flat_steps
from tacit.core.world import Alphabet


def test_sections_appear_in_order_and_empty_ones_leave_no_gap():
    prompt = Prompt(task="T", now="N", request="R", history=("h1", "h2"), separator="|")
    assert prompt.text == "T|h1|h2|N|R"
    assert prompt.with_notes("tn", "sn").text == "T|tn|h1|h2|N|sn|R"
    assert Prompt(task="", now="N").text == "N"


def test_a_note_replaces_its_own_kind_and_nothing_else():
    noted = Prompt(task="T", now="N").with_notes(task_note="a", step_note="b")
    assert noted.with_notes(step_note="c") == Prompt(task="T", now="N", task_note="a", step_note="c")
    assert noted.with_notes(task_note="") == Prompt(task="T", now="N", step_note="b")


def test_history_gives_way_from_the_oldest_end():
    prompt = Prompt(task="T", now="N", history=("h1", "h2"), task_note="note")
    assert prompt.without_oldest().history == ("h2",)
    assert prompt.without_oldest().without_oldest().text == "T\nnote\nN"


def test_nouns_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_group([[1]]).trajectories[0].steps[0].action = "other"  # type: ignore[misc]


def test_flat_views_run_rollout_major():
    group = make_group([[2, 1], [], [3]])
    assert group.lengths.tolist() == [2, 0, 1]
    assert group.trajectory_of_step.tolist() == [0, 0, 2]
    assert group.tokens_per_step.tolist() == [2, 1, 3]
    assert [t.completion_tokens for t in group.trajectories] == [3, 0, 3]
    assert flat_steps([group, group]) == [*group.steps, *group.steps]


def test_crashed_and_stepless_members_are_left_out_of_judgement():
    stops = [StopReason.SUCCESS, StopReason.WORLD_ERROR, StopReason.WORLD_HANG, StopReason.PROMPT_TOO_LONG]
    group = make_group([[1], [1], [1], []], stops=stops)
    assert [t.stop for t in group.without_crashes().trajectories] == [StopReason.SUCCESS]
    sound = make_group([[1], [1]])
    assert sound.without_crashes() is sound
    assert {reason for reason in StopReason if reason.crashed} == {StopReason.WORLD_ERROR, StopReason.WORLD_HANG}


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive(0) == 4246866556266386882
    assert derive(7, "rollout", 3) == 3136812465278155780


@given(st.integers(), st.lists(st.one_of(st.integers(), st.text()), max_size=3))
def test_derived_seeds_fit_everywhere_and_seed_numpy(seed, place):
    value = derive(seed, *place)
    assert 0 <= value < 2**63
    np.random.default_rng(value)


def test_places_have_seeds_of_their_own():
    places = [(s, *p) for s in range(20) for p in [(), *((n,) for n in range(20)), *(("rollout", n) for n in range(20))]]
    assert len({derive(*place) for place in places}) == len(places)


def test_an_alphabet_refuses_skills_it_does_not_have():
    trajectory = make_group([[1]]).trajectories[0]
    assert Alphabet(("GO", "TAKE"), lambda t: ("GO",) * len(t))(trajectory) == ("GO",)
    with pytest.raises(TacitError, match=r"unknown skill 'TAK'\. Did you mean 'TAKE'"):
        Alphabet(("GO", "TAKE"), lambda t: ("TAK",))(trajectory)


def test_unknown_names_are_told_what_there_is():
    assert str(unknown("world", "countdwon", ["cooking", "countdown"])) == (
        "unknown world 'countdwon'. Did you mean 'countdown'? Known: cooking, countdown."
    )
    assert str(unknown("world", "zzz", ["cooking"])) == "unknown world 'zzz'. Known: cooking."


def test_what_seeds_do_not_tell_apart():
    """Recorded runs rest on it; the docstring says so."""
    assert derive(0, "a/b") == derive(0, "a", "b") and derive(0, 1) == derive(0, "1")
