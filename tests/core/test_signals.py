"""Signals by name: the sums are always there, a rule only where it came up."""

from __future__ import annotations

import pytest

from tacit.core.hindsight import component_names, score_events, sum_signals


def test_sums_and_the_rules_behind_them():
    signals = sum_signals({"subgoal": 2.0, "new_room": 0.0, "hinted": 0.02}, {"repeated": 0.2})
    assert signals == {
        "progress": pytest.approx(2.02),
        "error": 0.2,
        "progress.subgoal": 2.0,
        "progress.hinted": 0.02,
        "error.repeated": 0.2,
    }
    assert sum_signals({}, {}) == {"progress": 0.0, "error": 0.0}
    assert all(type(value) is float for value in sum_signals({"subgoal": 1, "flag": True}, {}).values())


def test_what_happens_twice_counts_twice():
    assert score_events(["a", "b", "a"], {"a": 0.5, "b": 0.1, "c": 9.0}) == {"a": 1.0, "b": 0.1}
    with pytest.raises(KeyError):
        score_events(["d"], {"a": 0.5})


def test_names_are_spelled_as_signals_are():
    names = component_names(["subgoal"], ["repeated"])
    assert names == ("progress.subgoal", "error.repeated")
    assert set(sum_signals({"subgoal": 1.0}, {"repeated": 0.2})) == {"progress", "error", *names}
