"""SkillDictionary companion: success buffer, E-step, metrics, save and load."""

from __future__ import annotations

import pytest
from skilled import ABC, episode, group, won

from tacit.companions.dictionary import Dictionary, SkillDictionary, theorem_3
from tacit.core.errors import TacitError
from tacit.core.world import Alphabet

AB = ("A", "B")
REUSING = ("ABABC", "CABAB", "ABAB", "ABCAB")


def make(**settings) -> SkillDictionary:
    return SkillDictionary(ABC, **{"horizon": 20, **settings})


def test_dictionary_has_only_single_skills_before_first_success():
    companion = make()
    assert companion.dictionary == Dictionary(("A", "B", "C")) and companion.seg(("A", "B", "A")) == 3
    metrics = companion.observe([group(episode("ABAB", success=False))])
    assert companion.dictionary.merged == () and companion.successes == []
    assert metrics["dictionary_size"] == 3 and "description_length" not in metrics


def test_e_step_uses_only_successes():
    companion = make()
    metrics = companion.observe([won(*REUSING * 4), group(episode("CCCCCCCCCC", success=False))])
    assert AB in companion.dictionary.merged and companion.seg(("A", "B", "C")) == 2
    assert len(companion.successes) == 16
    corpus = companion.successes
    assert metrics["description_length"] == pytest.approx(companion.dictionary.description_length(corpus))
    segments = sum(map(companion.seg, corpus)) / 16
    assert metrics["success_segments"] == segments and metrics["success_skills"] == 19 / 4
    assert metrics["phrase_length"] == pytest.approx(19 / 4 / segments)
    assert metrics["mdl_bound"] == pytest.approx(theorem_3(segments, companion.dictionary, 16, 20, 0.05))
    assert metrics["dictionary_changed"] == metrics["dictionary_merged"] == len(companion.dictionary.merged)
    assert companion.learn([won("A")], None, None) == {}


def test_dictionary_is_unchanged_without_success():
    companion = make(buffer=0)
    companion.observe([won(*REUSING * 8)])
    before = companion.dictionary
    companion.observe([group(episode("CC", success=False))])
    assert companion.dictionary == before and before.merged
    assert [step for step, _ in companion.history.steps] == [1] and companion.history.iteration == 2


def test_success_buffer_is_first_in_first_out():
    companion = make(buffer=4)
    companion.observe([won("A", "B", "C")])
    companion.observe([won("AA", "BB")])
    assert companion.successes == [("B",), ("C",), ("A", "A"), ("B", "B")]


def test_batch_larger_than_buffer_is_used_completely_once():
    """All successes of the batch enter the E-step; the buffer keeps the newest."""
    companion = make(buffer=2)
    companion.observe([won("CC")])
    metrics = companion.observe([won(*REUSING * 8)])
    alone = make(buffer=0)
    assert alone.observe([won(*REUSING * 8)])["description_length"] == metrics["description_length"]
    assert companion.dictionary == alone.dictionary
    assert companion.successes == [tuple("ABAB"), tuple("ABCAB")]


def test_without_buffer_only_the_current_batch_counts():
    companion = make(buffer=0)
    companion.observe([won(*REUSING * 8)])
    assert companion.dictionary.merged
    companion.observe([won("C")])
    assert companion.dictionary.merged == () and companion.successes == []
    remembering = make()
    remembering.observe([won(*REUSING * 8)])
    remembering.observe([won("C")])
    assert remembering.dictionary.merged, "with one, the reusable phrases survive a thin batch"


def test_history_records_phrase_uses_per_iteration():
    companion = make(buffer=0)
    companion.observe([won(*["AB"] * 40)])
    companion.observe([won(*["BC"] * 30)])
    assert companion.history.uses() == [(1, {AB: 40}), (2, {("B", "C"): 30})]


def test_loaded_dictionary_continues_like_the_original(tmp_path):
    whole, broken = make(buffer=20), make(buffer=20)
    batches = [won(*REUSING * 4), group(episode("C", success=False)), won("CBCB", "CBCB", "ABC"), won(*["CBCB"] * 12)]
    for batch in batches[:2]:
        whole.observe([batch])
        broken.observe([batch])
    broken.save(tmp_path)
    resumed = make(buffer=20)
    resumed.load(tmp_path)
    for batch in batches[2:]:
        expected, actual = whole.observe([batch]), resumed.observe([batch])
        assert {**expected, "dictionary_seconds": 0} == {**actual, "dictionary_seconds": 0}
    assert resumed.state() == whole.state() and resumed.history == whole.history
    assert resumed.dictionary == whole.dictionary


def test_loading_state_of_another_alphabet_is_refused(tmp_path):
    other = SkillDictionary(Alphabet(("X", "Y"), ABC.project), 20)
    other.save(tmp_path)
    with pytest.raises(TacitError, match="another alphabet"):
        make().load(tmp_path)


def test_companions_are_equal_by_settings():
    seen = make()
    seen.observe([won(*REUSING * 4)])
    assert seen == make() and make() != make(buffer=0) and make() != make(horizon=10)


def test_no_bound_if_a_success_exceeds_the_horizon():
    metrics = make(horizon=3).observe([won("ABAB")])
    assert "mdl_bound" not in metrics and metrics["description_length"] > 0


def test_unknown_skill_is_refused_without_changing_state():
    companion = make()
    companion.observe([won(*REUSING * 4)])
    before = companion.state()
    with pytest.raises(TacitError, match="unknown skill 'X'"):
        companion.observe([won("AB", "AX")])
    assert companion.state() == before


@pytest.mark.parametrize("make_iterable", [list, iter], ids=["list", "generator"])
def test_a_projection_may_return_any_iterable(make_iterable):
    plain, other = make(), SkillDictionary(Alphabet(ABC.skills, lambda t: make_iterable(ABC.project(t))), 20)
    for companion in (plain, other):
        companion.observe([won(*REUSING * 4)])
    assert other.dictionary == plain.dictionary and other.state() == plain.state()


def test_success_without_skills_is_refused():
    with pytest.raises(TacitError, match=r"'toy/0' \(2 steps\) has no skills"):
        make().observe([won("--")])
