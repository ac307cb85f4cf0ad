"""Signals: totals are always present, a rule only if it fired."""

from __future__ import annotations

import pytest

from tacit.core.hindsight import component_names, score_events, sum_signals


def test_signals_contain_totals_and_fired_rules():
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


def test_repeated_events_are_counted_each_time():
    assert score_events(["a", "b", "a"], {"a": 0.5, "b": 0.1, "c": 9.0}) == {"a": 1.0, "b": 0.1}
    with pytest.raises(KeyError):
        score_events(["d"], {"a": 0.5})


def test_component_names_match_signal_keys():
    names = component_names(["subgoal"], ["repeated"])
    assert names == ("progress.subgoal", "error.repeated")
    assert set(sum_signals({"subgoal": 1.0}, {"repeated": 0.2})) == {"progress", "error", *names}
