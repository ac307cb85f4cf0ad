"""What is said before a run that will hardly learn."""

from __future__ import annotations

from tacit.assembly.recipe import Recipe
from tacit.engines.models.bases import base_named, is_small
from tacit.engines.models.tiny import TINY_SIZES

SMALL_POLICY_LR = 1e-5
"""below this the weights of a policy of a million parameters hardly move in as many iterations as a run has"""
LANGUAGE_MODEL_SFT_LR = 3e-4
"""above this imitation may undo the pretraining of a language model"""


def doubts(recipe: Recipe) -> tuple[str, ...]:
    """Nothing is refused: whoever tries it on purpose may."""
    schedule, imitates = recipe.schedule, recipe.train.sft.all_steps > 0
    small = recipe.model in TINY_SIZES or is_small(recipe.model)
    found = []
    if imitates and recipe.train.sft.lr > LANGUAGE_MODEL_SFT_LR and not small:
        found.append(
            f"sft.lr = {recipe.train.sft.lr:g} is meant for policies of a million parameters; a language model may lose what "
            "it knows by it; try --sft.lr 1e-4"
        )
    if imitates and recipe.train.sft.entries:
        found += recipe.settings.doubts_of_entries(frozenset(recipe.policies))
    if not schedule.iterations:
        return tuple(found)
    if (recipe.model in TINY_SIZES or base_named(recipe.model)) and not imitates:
        begins = "begins as noise" if recipe.model in TINY_SIZES else "has never been shown what to do"
        found.append(
            f"{recipe.model} {begins} and imitates nobody first: hardly an episode will succeed, and practice will have "
            "nothing to learn from; add --sft.steps 300"
        )
    if schedule.lr < SMALL_POLICY_LR and small:
        found.append(
            f"lr = {schedule.lr:g} is meant for language models, and {recipe.model} will hardly move by it; try --lr 3e-4"
        )
    return tuple(found)
