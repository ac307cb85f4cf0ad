"""Methods by name. Each class holds the settings of one paper; its `changes` returns what differs from GRPO."""

from __future__ import annotations

from typing import Any

from tacit.core.registry import Registry

METHODS = {
    "grpo": "tacit.methods.grpo:GRPO",
    "rloo": "tacit.methods.grpo_variants:RLOO",
    "reinforce_pp": "tacit.methods.grpo_variants:ReinforcePP",
    "dapo": "tacit.methods.grpo_variants:DAPO",
    "gspo": "tacit.methods.grpo_variants:GSPO",
    "cispo": "tacit.methods.grpo_variants:CISPO",
    "ppo": "tacit.methods.grpo_variants:PPO",
    "round_length": "tacit.methods.reuserl:RoundLength",
    "reuserl": "tacit.methods.reuserl:ReuseRL",
    "gigpo": "tacit.methods.gigpo:GiGPO",
    "hgpo": "tacit.methods.gigpo:HGPO",
    "bigpo": "tacit.methods.bipace:BiGPO",
    "bipace": "tacit.methods.bipace:BiPACE",
    "opid": "tacit.methods.opid:OPID",
    "skill_prompt": "tacit.methods.distillation:SkillPrompt",
    "skill_grpo": "tacit.methods.distillation:SkillGRPO",
    "opsd": "tacit.methods.distillation:OPSD",
    "grpo_opsd": "tacit.methods.distillation:GRPOwithOPSD",
    "skill_sd": "tacit.methods.distillation:SkillSD",
    "rlsd": "tacit.methods.distillation:RLSD",
    "sdar": "tacit.methods.distillation:SDAR",
    "complementary": "tacit.methods.complementary:Complementary",
    "constant_context": "tacit.methods.constant_context:ConstantContext",
}
ADD_ONS = {"judge": "tacit.methods.judge:Judge", "self_imitation": "tacit.methods.grpo_variants:SelfImitation"}
"""methods meant to be combined with another one: `--method reuserl+judge`"""


REGISTRY = Registry(
    "method",
    "tacit.methods",
    {**METHODS, **ADD_ONS},
    lambda value: isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("build", "context")),
    "a dataclass with `context(world)` and `build(world, resources) -> Method`, such as a subclass of tacit.methods.grpo.GRPO",
)


def get_method(name: str) -> type[Any]:
    """The settings class of a method: a name, several as `a+b`, or your own as `package.module:Class` or `file.py:Class`."""
    names = tuple(part.strip() for part in name.split("+"))
    if len(names) == 1 or not all(names):
        return REGISTRY.get(name)
    from tacit.methods.combine import combine

    return combine(names, tuple(REGISTRY.get(part) for part in names))
