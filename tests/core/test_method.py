"""Method validates its pieces; compose combines methods or explains why it cannot."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tacit.core.errors import TacitError
from tacit.core.method import Alike, Conditions, Method, RewardTerm, Schedule, adds, check_conflicts, compose, replaces
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, HiddenState, IterationInfo
from tacit.credit.episode import EpisodeRelative, LeaveOneOut, Returns
from tacit.losses.surrogates import ClippedSurrogate, EntropyBonus, ReferenceKL, ReferenceLogprobs, ValueLoss
from tacit.rewards.outcome import Outcome


@dataclass(frozen=True)
class Bonus(RewardTerm):
    """A reward term of another method."""

    weight: float = 1.0

    def __call__(self, groups):
        raise NotImplementedError


@dataclass(frozen=True)
class HalfGuided(Conditions):
    def assign(self, task, size, seed):
        return [PLAIN, Condition("guided")] * (size // 2)


def method(**changes) -> Method:
    """A minimal valid method."""
    pieces = {
        "name": "a",
        "context": "context",
        "rewards": (Outcome(),),
        "credits": (EpisodeRelative(),),
        "losses": (ClippedSurrogate(),),
    }
    return Method(**{**pieces, **changes})


@pytest.mark.parametrize("piece", ["rewards", "credits", "losses"])
def test_method_missing_a_required_piece_is_refused(piece):
    with pytest.raises(TacitError, match=f"has no {piece}"):
        method(**{piece: ()})


def test_loss_inputs_must_come_from_the_engine_or_a_column():
    with pytest.raises(TacitError, match=r"\['reference'\]"):
        method(losses=(ClippedSurrogate(), ReferenceKL()))
    with pytest.raises(TacitError, match=r"\['returns'\]"):
        method(losses=(ClippedSurrogate(), ValueLoss()))
    whole = method(
        losses=(ClippedSurrogate(), ReferenceKL(), ValueLoss(), EntropyBonus()), columns=(ReferenceLogprobs(), Returns())
    )
    assert whole.needs == {"sampling", "learning", "scoring", "reference", "values", "entropy"}


def test_method_needs_are_the_union_of_its_pieces():
    assert method().needs == {"sampling", "learning"}
    assert method(hidden_state=HiddenState(-2)).needs == {"sampling", "learning", "hidden_states"}
    assert method(columns=(ReferenceLogprobs(),)).needs == {"sampling", "learning", "scoring", "reference"}


BASE = (adds("rewards", "outcome", Outcome()), adds("credits", "episode credit", EpisodeRelative()),
        adds("losses", "surrogate", ClippedSurrogate()))  # fmt: skip


def composed(**changes) -> Method:
    return compose("+".join(changes), "context", Schedule(), BASE, changes)


def test_compose_adds_and_replaces_pieces():
    adding, replacing = [adds("rewards", "bonus", Bonus())], [replaces("credits", "episode credit", LeaveOneOut())]
    for both in (composed(a=adding, b=replacing), composed(b=replacing, a=adding)):
        assert both.rewards == (Outcome(), Bonus()) and both.credits == (LeaveOneOut(),)
    assert composed(a=adding).credits == (EpisodeRelative(),)


def test_composition_does_not_depend_on_method_order():
    step, own = adds("credits", "step credit", Bonus(2.0)), replaces("credits", "episode credit", LeaveOneOut())
    assert composed(a=[step], b=[own]).credits == composed(b=[own], a=[step]).credits == (LeaveOneOut(), Bonus(2.0))


def test_composition_without_credits_is_refused():
    with pytest.raises(TacitError, match="has no credits"):
        composed(a=[replaces("credits", "episode credit")])


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (replaces("losses", "surrogate", 1), replaces("losses", "surrogate", 2), "both replace the surrogate"),
        (adds("rewards", "bonus", 1), adds("rewards", "bonus", 2), "both add a bonus, which would be counted twice"),
        (adds("rewards", "bonus", 1), replaces("rewards", "bonus", 2), "'a' adds a bonus|a adds a bonus and b would drop it"),
        (replaces("rewards", "bonus", 1), adds("rewards", "bonus", 2), "b adds a bonus and a would drop it"),
    ],
)
def test_conflicting_changes_are_refused_with_the_reason(one, other, reason):
    with pytest.raises(TacitError, match=reason):
        composed(a=[one], b=[other])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (adds("rewards", "cost", 1), r"must return a tuple of parts, such as \(adds\(…\),\), but returned Part"),
        (None, "must return a tuple of parts.*returned None"),
        ((adds("reward", "cost", 1),), r"unknown piece 'reward' of the method 'mine'. Did you mean 'rewards'\?"),
    ],
)
def test_invalid_parts_are_refused_with_the_reason(changes, reason):
    with pytest.raises(TacitError, match=reason):
        check_conflicts({"mine": changes})


def test_identical_terms_are_merged():
    twice = composed(a=[adds("rewards", "bonus", Bonus())], b=[adds("rewards", "bonus", Bonus())])
    assert twice.rewards == (Outcome(), Bonus())


def test_optional_pieces_come_from_the_method_that_has_them():
    both = composed(a=[adds("hidden_state", "hidden state", HiddenState(-2))], b=[adds("conditions", "halves", HalfGuided())])
    assert both.hidden_state == HiddenState(-2) and both.conditions == HalfGuided() and both.selection is None


def test_composition_that_would_drop_a_piece_is_refused():
    with pytest.raises(TacitError, match="has 2 terms for selection; a method may have at most one"):
        composed(a=[adds("selection", "one", 1)], b=[adds("selection", "other", 2)])
    with pytest.raises(TacitError, match="'a' adds a outcome to the rewards, but there is one already"):
        composed(a=[adds("rewards", "outcome", Bonus())])
    with pytest.raises(TacitError, match="'a' changes the bonus twice"):
        composed(a=[adds("rewards", "bonus", Bonus(1.0)), adds("rewards", "bonus", Bonus(2.0))])


def test_companions_with_the_same_name_are_refused():
    class Named:
        name = "dictionary"

    with pytest.raises(TacitError, match="two companions with the same name"):
        method(companions=(Named(), Named()))


def test_alike_assigns_the_plain_condition_to_all_members():
    assert list(Alike().assign(None, 3, 0)) == [PLAIN] * 3


def test_iteration_info_derives_seeds():
    assert IterationInfo(7, 3, 5).derive("update") == derive(7, "update", 3)
