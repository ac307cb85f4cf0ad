"""Core types: prompt sections, flat views of groups, derived seeds, skill alphabets."""

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


def test_prompt_sections_are_ordered_and_empty_ones_skipped():
    prompt = Prompt(task="T", now="N", request="R", history=("h1", "h2"), separator="|")
    assert prompt.text == "T|h1|h2|N|R"
    assert prompt.with_notes("tn", "sn").text == "T|tn|h1|h2|N|sn|R"
    assert Prompt(task="", now="N").text == "N"


def test_with_notes_replaces_only_the_given_note():
    noted = Prompt(task="T", now="N").with_notes(task_note="a", step_note="b")
    assert noted.with_notes(step_note="c") == Prompt(task="T", now="N", task_note="a", step_note="c")
    assert noted.with_notes(task_note="") == Prompt(task="T", now="N", step_note="b")


def test_without_oldest_drops_the_oldest_history_entry():
    prompt = Prompt(task="T", now="N", history=("h1", "h2"), task_note="note")
    assert prompt.without_oldest().history == ("h2",)
    assert prompt.without_oldest().without_oldest().text == "T\nnote\nN"


def test_core_types_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_group([[1]]).trajectories[0].steps[0].action = "other"  # type: ignore[misc]


def test_flat_views_are_rollout_major():
    group = make_group([[2, 1], [], [3]])
    assert group.lengths.tolist() == [2, 0, 1]
    assert group.trajectory_of_step.tolist() == [0, 0, 2]
    assert group.tokens_per_step.tolist() == [2, 1, 3]
    assert [t.completion_tokens for t in group.trajectories] == [3, 0, 3]
    assert flat_steps([group, group]) == [*group.steps, *group.steps]


def test_without_crashes_drops_crashed_and_empty_trajectories():
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
def test_derived_seeds_fit_in_63_bits_and_seed_numpy(seed, place):
    value = derive(seed, *place)
    assert 0 <= value < 2**63
    np.random.default_rng(value)


def test_different_paths_get_different_seeds():
    places = [(s, *p) for s in range(20) for p in [(), *((n,) for n in range(20)), *(("rollout", n) for n in range(20))]]
    assert len({derive(*place) for place in places}) == len(places)


def test_alphabet_refuses_unknown_skills():
    trajectory = make_group([[1]]).trajectories[0]
    assert Alphabet(("GO", "TAKE"), lambda t: ("GO",) * len(t))(trajectory) == ("GO",)
    with pytest.raises(TacitError, match=r"unknown skill 'TAK'\. Did you mean 'TAKE'"):
        Alphabet(("GO", "TAKE"), lambda t: ("TAK",))(trajectory)


def test_unknown_name_error_lists_known_names():
    assert str(unknown("world", "countdwon", ["cooking", "countdown"])) == (
        "unknown world 'countdwon'. Did you mean 'countdown'? Known: cooking, countdown."
    )
    assert str(unknown("world", "zzz", ["cooking"])) == "unknown world 'zzz'. Known: cooking."


def test_derive_ignores_path_splits_and_int_versus_str():
    """Recorded runs depend on this, as the docstring of `derive` says."""
    assert derive(0, "a/b") == derive(0, "a", "b") and derive(0, 1) == derive(0, "1")
