"""Method refuses what could not learn; composition puts methods together or says why not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tacit.core.composition import adds, check_places, compose, replaces
from tacit.core.errors import TacitError
from tacit.core.method import Alike, Conditions, Method, RewardTerm, Schedule
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, HiddenState, IterationInfo
from tacit.credit.episode import EpisodeRelative, LeaveOneOut
from tacit.credit.returns import Returns
from tacit.losses.surrogates import ClippedSurrogate, EntropyBonus, ReferenceKL, ReferenceLogprobs, ValueLoss
from tacit.rewards.outcome import Outcome


@dataclass(frozen=True)
class Bonus(RewardTerm):
    """a reward term that another method might bring"""

    weight: float = 1.0

    def __call__(self, groups):
        raise NotImplementedError


@dataclass(frozen=True)
class Halves(Conditions):
    def assign(self, task, size, seed):
        return [PLAIN, Condition("guided")] * (size // 2)


def method(**changes) -> Method:
    """A method of the fewest pieces."""
    pieces = {
        "name": "a",
        "context": "context",
        "rewards": (Outcome(),),
        "credits": (EpisodeRelative(),),
        "losses": (ClippedSurrogate(),),
    }
    return Method(**{**pieces, **changes})


@pytest.mark.parametrize("piece", ["rewards", "credits", "losses"])
def test_a_method_without_a_piece_could_not_learn(piece):
    with pytest.raises(TacitError, match=f"has no {piece}"):
        method(**{piece: ()})


def test_losses_get_what_they_read_from_an_engine_or_a_column():
    with pytest.raises(TacitError, match=r"\['reference'\]"):
        method(losses=(ClippedSurrogate(), ReferenceKL()))
    with pytest.raises(TacitError, match=r"\['returns'\]"):
        method(losses=(ClippedSurrogate(), ValueLoss()))
    whole = method(
        losses=(ClippedSurrogate(), ReferenceKL(), ValueLoss(), EntropyBonus()), columns=(ReferenceLogprobs(), Returns())
    )
    assert whole.needs == {"sampling", "learning", "scoring", "reference", "values", "entropy"}


def test_a_method_asks_an_engine_for_what_its_pieces_ask():
    assert method().needs == {"sampling", "learning"}
    assert method(hidden_state=HiddenState(-2)).needs == {"sampling", "learning", "hidden_states"}
    assert method(columns=(ReferenceLogprobs(),)).needs == {"sampling", "learning", "scoring", "reference"}


BASE = (adds("rewards", "outcome", Outcome()), adds("credits", "episode credit", EpisodeRelative()),
        adds("losses", "surrogate", ClippedSurrogate()))  # fmt: skip


def composed(**changes) -> Method:
    return compose("+".join(changes), "context", Schedule(), BASE, changes)


def test_what_is_added_stands_beside_and_what_is_replaced_is_gone():
    adding, replacing = [adds("rewards", "bonus", Bonus())], [replaces("credits", "episode credit", LeaveOneOut())]
    for both in (composed(a=adding, b=replacing), composed(b=replacing, a=adding)):
        assert both.rewards == (Outcome(), Bonus()) and both.credits == (LeaveOneOut(),)
    assert composed(a=adding).credits == (EpisodeRelative(),)


def test_one_replaces_what_another_adds_to_whichever_way_they_are_named():
    step, own = adds("credits", "step credit", Bonus(2.0)), replaces("credits", "episode credit", LeaveOneOut())
    assert composed(a=[step], b=[own]).credits == composed(b=[own], a=[step]).credits == (LeaveOneOut(), Bonus(2.0))


def test_a_role_can_be_emptied_and_the_method_still_has_to_learn():
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
def test_two_that_cannot_live_together_are_refused_with_the_reason(one, other, reason):
    with pytest.raises(TacitError, match=reason):
        composed(a=[one], b=[other])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (adds("rewards", "cost", 1), r"must return a tuple of parts, such as \(adds\(…\),\), and returned Part"),
        (None, "must return a tuple of parts.*returned None"),
        ((adds("reward", "cost", 1),), r"unknown piece 'reward' of the method 'mine'. Did you mean 'rewards'\?"),
    ],
)
def test_what_is_no_change_is_refused_with_the_reason(changes, reason):
    with pytest.raises(TacitError, match=reason):
        check_places({"mine": changes})


def test_the_same_term_twice_is_one_term():
    twice = composed(a=[adds("rewards", "bonus", Bonus())], b=[adds("rewards", "bonus", Bonus())])
    assert twice.rewards == (Outcome(), Bonus())


def test_single_pieces_are_taken_from_whoever_has_one():
    both = composed(a=[adds("hidden_state", "hidden state", HiddenState(-2))], b=[adds("conditions", "halves", Halves())])
    assert both.hidden_state == HiddenState(-2) and both.conditions == Halves() and both.selection is None


def test_nothing_is_lost_without_a_word():
    with pytest.raises(TacitError, match="would have 2 pieces selection; a method has at most one"):
        composed(a=[adds("selection", "one", 1)], b=[adds("selection", "other", 2)])
    with pytest.raises(TacitError, match="'a' adds a outcome to the rewards, which are there already"):
        composed(a=[adds("rewards", "outcome", Bonus())])
    with pytest.raises(TacitError, match="'a' changes the bonus twice"):
        composed(a=[adds("rewards", "bonus", Bonus(1.0)), adds("rewards", "bonus", Bonus(2.0))])


def test_two_companions_cannot_share_a_name():
    class Named:
        name = "dictionary"

    with pytest.raises(TacitError, match="two companions of the same name"):
        method(companions=(Named(), Named()))


def test_all_members_alike():
    assert list(Alike().assign(None, 3, 0)) == [PLAIN] * 3


def test_an_iteration_derives_its_seeds():
    assert IterationInfo(7, 3, 5).derive("update") == derive(7, "update", 3)
