"""Method refuses what could not learn; combine puts two together or says why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tacit.core.errors import TacitError
from tacit.core.method import Alike, Method, Schedule, combine
from tacit.core.types import PLAIN, Condition
from tacit.credit.episode import EpisodeRelative, LeaveOneOut
from tacit.credit.returns import Returns
from tacit.environments import get_environment
from tacit.losses.clipped import ClippedSurrogate
from tacit.losses.entropy import EntropyBonus
from tacit.losses.kl import ReferenceKL, ReferenceLogprobs
from tacit.losses.value import ValueLoss
from tacit.methods.dapo import DAPO
from tacit.methods.grpo import GRPO
from tacit.rewards.invalid import InvalidPenalty
from tacit.rewards.outcome import Outcome
from tacit.rollout.selection import Mixed

WORLD = get_environment("countdown")


@dataclass(frozen=True)
class Bonus:
    """a reward term that another method might bring"""

    weight: float = 1.0

    def __call__(self, groups):
        raise NotImplementedError


@dataclass(frozen=True)
class Halves:
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
    assert whole.needs == {"reference", "returns", "values", "entropy"}


def test_terms_of_both_and_shared_ones_once():
    a = method(rewards=(Outcome(), InvalidPenalty()))
    b = method(name="b", rewards=(Outcome(), Bonus()), credits=(LeaveOneOut(),), schedule=Schedule(groups=3))
    both = combine(a, b)
    assert both.name == "a+b"
    assert both.rewards == (Outcome(), InvalidPenalty(), Bonus())
    assert both.credits == (EpisodeRelative(), LeaveOneOut())
    assert both.losses == (ClippedSurrogate(),)
    assert both.schedule == a.schedule
    assert set(combine(b, a).rewards) == set(both.rewards) and set(combine(b, a).credits) == set(both.credits)


def test_a_method_with_itself_is_itself():
    grpo = GRPO().build(WORLD)
    assert replace(combine(grpo, grpo), name="grpo") == grpo


def test_one_term_with_two_settings_is_refused_with_the_reason():
    with pytest.raises(TacitError, match=r"Outcome among their rewards, with scale = 10.0 against 1.0"):
        combine(method(), method(name="b", rewards=(Outcome(1.0),)))
    with pytest.raises(TacitError, match=r"high = 0.2 against 0.28"):
        combine(GRPO().build(WORLD), DAPO(kl=0.01).build(WORLD))


def test_a_method_may_have_two_terms_of_one_kind():
    plain, twice = method(), method(name="b", rewards=(Bonus(1.0), Bonus(2.0)))
    expected = {Outcome(), Bonus(1.0), Bonus(2.0)}
    assert set(combine(plain, twice).rewards) == expected == set(combine(twice, plain).rewards)
    once = method(name="c", rewards=(Bonus(1.0),))
    assert set(combine(once, twice).rewards) == {Bonus(1.0), Bonus(2.0)} == set(combine(twice, once).rewards)
    with pytest.raises(TacitError, match="Bonus"):
        combine(method(rewards=(Bonus(3.0),)), twice)


def test_context_must_agree():
    with pytest.raises(TacitError, match="a group has one context"):
        combine(GRPO().build(WORLD), GRPO(history=4).build(WORLD))


@pytest.mark.parametrize(
    ("piece", "default", "one", "other"),
    [
        ("conditions", Alike(), Halves(), "other"),
        ("hidden_layer", None, 0, 3),
        ("selection", None, Mixed(2), Mixed(3)),
    ],
)
def test_what_only_one_of_them_sets_is_taken(piece, default, one, other):
    plain, special = method(), method(name="b", **{piece: one})
    assert getattr(combine(plain, special), piece) == one == getattr(combine(special, plain), piece)
    assert getattr(combine(special, special), piece) == one
    assert getattr(combine(plain, plain), piece) == default
    with pytest.raises(TacitError, match=f"one {piece}"):
        combine(special, method(name="c", **{piece: other}))


def test_combining_brings_the_columns_along():
    @dataclass(frozen=True)
    class Needy:
        needs: ClassVar[frozenset[str]] = frozenset({"returns"})

    needy = method(name="b", losses=(Needy(),), columns=(Returns(),))
    assert combine(method(), needy).columns == (Returns(),)


def test_all_members_alike():
    assert list(Alike().assign(None, 3, 0)) == [PLAIN] * 3
