"""The source of every value in a published recipe.

For each recipe and column: place in the resolved document -> (value, source). A source is a place in the paper or in the code
it builds on: `script` and `yaml` are verl-agent's examples/*_trainer/run_alfworld.sh and trainer/config/ppo_trainer.yaml,
`code` is its trainer. `ours` marks values that are stated nowhere, `instead` marks deliberate deviations, with the reason.
"""

from __future__ import annotations

from typing import Any

from tacit.config.values import to_data
from tacit.engines import get_engine

LocalSettings = get_engine("local").settings
Sourced = dict[str, tuple[Any, str]]

VERL_AGENT: Sourced = {
    "world": ("alfworld", "script: env.env_name"),
    "split": ("published_train", "code: AlfredTWEnv trains on the train games"),
    "tasks": (3553, "code: all of them"),
    "families": ("", "code: task types 1 to 6"),
    "max_steps": (0, "script: env.max_steps=50, the world's own"),
    "max_tokens": (512, "script: data.max_response_length"),
    "prompt.history": (2, "yaml: env.history_length"),
    "prompt.state_block": (False, "code: prompts without one"),
    "prompt.wording": ("full", "code: the prompt templates"),
    "prompt.style": ("tags", "code: <think> and <action>"),
    "prompt.chat": (False, "code: every turn is one user message"),
    "prompt.thinking": (False, "code: thoughts are in tags of the prompt's own"),
    "prompt.admissible": (True, "code: the prompt templates list them"),
    "method.outcome": ("success", "code: 10 × won"),
    "method.success_reward": (10.0, "code: 10 × won"),
    "method.invalid_penalty": (0.1, "script: invalid_action_penalty_coef"),
    "method.std": ("population", "instead: the papers' equations; the code has the sample's"),
    "method.over": ("trajectories", "instead: the papers' equations; the code has all steps of a group"),
    "method.clip_low": (0.2, "yaml: clip_ratio_low"),
    "method.clip_high": (0.2, "yaml: clip_ratio_high"),
    "method.kl": (0.01, "script: kl_loss_coef"),
    "method.entropy": (0.001, "yaml: entropy_coeff"),
    "schedule.groups": (16, "script: train_data_size"),
    "schedule.group_size": (8, "script: group_size"),
    "schedule.iterations": (150, "script: trainer.total_epochs, one batch each"),
    "schedule.lr": (1e-6, "script: actor.optim.lr"),
    "schedule.warmup": (0.0, "yaml: actor.optim.lr_warmup_steps_ratio"),
    "schedule.decay": ("none", "yaml: actor.optim.warmup_style=constant"),
    "schedule.temperature": (1.0, "yaml: rollout.temperature"),
    "schedule.top_p": (1.0, "yaml: rollout.top_p"),
    "schedule.top_k": (0, "yaml: rollout.top_k"),
    "schedule.epochs": (1, "yaml: ppo_epochs"),
    "schedule.minibatches": (1, "by minibatch_rows"),
    "schedule.minibatch_rows": (256, "script: ppo_mini_batch_size, which counts environment steps"),
    "sft.steps": (0, "script: from the instruction-tuned model"),
    "evaluation.split": ("valid_seen", "code: eval_in_distribution"),
    "evaluation.tasks": (128, "script: val_data_size"),
    "evaluation.panel": ("", "ours"),
    "evaluation.also": ("", "ours"),
    "evaluation.repeats": (1, "yaml: val_kwargs.n"),
    "evaluation.every": (5, "script: trainer.test_freq"),
    "evaluation.patience": (0, "script: all of trainer.total_epochs"),
    "evaluation.untrained": (True, "script: val_before_train"),
    "evaluation.temperature": (0.4, "script: val_kwargs.temperature"),
    "evaluation.top_p": (1.0, "yaml: val_kwargs.top_p"),
    "evaluation.top_k": (0, "yaml: val_kwargs.top_k=-1, all tokens"),
    "evaluation.max_steps": (0, "script: env.max_steps=50, the world's own"),
    "engine.lora_rank": (0, "yaml: model.lora_rank, all parameters"),
    "engine.clip_norm": (1.0, "yaml: actor.grad_clip"),
    "engine.weight_decay": (0.01, "yaml: actor.optim.weight_decay"),
    "engine.betas": ([0.9, 0.999], "code: AdamW's own"),
    "engine.value_head": (False, "no critic"),
}

STEPWISE: Sourced = {"method.gamma": (0.95, "script of GiGPO: algorithm.gamma; BiPACE, Table I.2")}
GIGPO: Sourced = (
    VERL_AGENT
    | STEPWISE
    | {
        "method.step_weight": (1.0, "script of GiGPO: step_advantage_w"),
        "method.step_std": ("population", "script of GiGPO: mean_std_norm; instead of the sample's, as for the episode"),
        "method.key": ("observation", "code: the anchor observation"),
        "method.similarity": (1.0, "yaml: gigpo.enable_similarity=False"),
    }
)
HGPO: Sourced = (
    VERL_AGENT
    | STEPWISE
    | {
        "method.alpha": (1.0, "HGPO's code: length_weight_alpha"),
        "method.key": ("observation", "HGPO's code: histories of observations"),
        "method.base": (False, "HGPO's code: base_group"),
        "method.step_std": ("population", "HGPO's code: mean_std_norm, not the sample's"),
        "schedule.iterations": (160, "HGPO's code: total_epochs"),
    }
)
PPO: Sourced = VERL_AGENT | {
    "method.success_reward": (1.0, "instead of 10: the value head shares the policy's gradient clip"),
    "method.invalid_penalty": (0.01, "instead of 0.1: in proportion to success"),
    "method.gamma": (1.0, "yaml: algorithm.gamma"),
    "method.lam": (1.0, "yaml: algorithm.lam"),
    "method.value_coefficient": (0.5, "ours: there the critic is a model of its own, at learning rate 1e-5"),
    "schedule.groups": (128, "script of PPO: train_data_size, as many episodes as 16 × 8"),
    "schedule.group_size": (1, "yaml: env.rollout.n, no groups"),
    "engine.value_head": (True, "ours: there the critic is a model of its own"),
}
BIGPO: Sourced = VERL_AGENT | STEPWISE | {
    "schedule.lr": (5e-7, "Table I.2: actor.optim.lr"),
    "schedule.iterations": (150, "§4.3: the 150-step budget"),
    "method.kl": (0.01, "Table I.2: kl_loss_coef"),
    "method.step_weight": (1.0, "Table I.2: step_advantage_w"),
    "method.step_std": ("population", "Eq. 2, as for GiGPO"),
    "method.embedder": ("actor", "Table I.2: bisim_embedder"),
    "method.text_key": ("observation", "appendix K: n-grams of the observation; not used by the actor's states"),
    "method.encoder": ("sentence-transformers/all-MiniLM-L6-v2", "ours; not used with this embedder"),
    "method.layer": (-8, "appendix H: the 7B default"),
    "method.pooling": ("last", "§3.4: the last prompt token"),
    "method.epsilon": (0.10, "appendix H: the 7B default"),
    "method.adaptive": (False, "§5: the radius is fixed"),
}  # fmt: skip
BIPACE: Sourced = BIGPO | {
    "method.step_std": ("none", "Eqs. 5–7"),
    "method.estimator": ("q", "Table I.2: cacb_estimator q_style"),
    "method.action_key": ("tag", "Table I.2: cacb_action_key_mode action_tag"),
    "method.key_tokens": (8, "Table I.2: cacb_n_action_tokens"),
}

FIRST_TOKEN: Sourced = {
    "method.estimator": ("difference", "Table L.1: diff-peer"),
    "method.action_key": ("tokens", "Table L.1: first-token"),
}
ACTION_TAG: Sourced = {
    "method.estimator": ("difference", "Table L.1: diff-peer"),
    "method.action_key": ("tag", "Table L.1: action-tag"),
}
Q_STYLE: Sourced = {
    "method.estimator": ("q", "Table L.1: Q-style"),
    "method.action_key": ("tag", "Table L.1: action-tag"),
}

ON_7B: Sourced = {"model": ("Qwen/Qwen2.5-7B-Instruct", "§4.1")}
ON_1_5B: Sourced = {"model": ("Qwen/Qwen2.5-1.5B-Instruct", "§4.1")}
CALIBRATED_1_5B: Sourced = {
    "method.layer": (-12, "Table H.1: layer 16 of 28"),
    "method.epsilon": (0.05, "Table H.1"),
    "schedule.iterations": (200, "Table 2: extended training budget"),
}

IN_THE_SHOP: Sourced = {
    "world": ("webshop", "script: env.env_name=Webshop"),
    "split": ("published_train", "instead of goals 500 and up of a list that every worker shuffles for itself"),
    "tasks": (2400, "16 × 150: as many as are met"),
    "families": ("", "code: all departments"),
    "max_steps": (0, "script of WebShop: env.max_steps=15, the world's own"),
    "schedule.minibatch_rows": (64, "script of WebShop: ppo_mini_batch_size, which counts environment steps"),
    "evaluation.split": ("published_test", "instead of goals 0 to 499 of such a list: held out by product and sentence"),
    "evaluation.max_steps": (0, "script of WebShop: env.max_steps=15, the world's own"),
}
MEAN_NORM: Sourced = {
    "method.std": ("none", "script of WebShop: gigpo.mode=mean_norm"),
    "method.step_std": ("none", "script of WebShop: gigpo.mode=mean_norm"),
}

AT_THE_BENCH: Sourced = {
    "world": ("textcraft", "§4.1"),
    "split": ("published_train", "ours: which goals are trained on is not stated"),
    "tasks": (328, "all of them"),
    "families": ("", "ours: depth 4 is only left out of the table"),
    "max_steps": (0, "ours: not stated; the world's own"),
    "schedule.groups": (16, "ours: Table I.1 is not in the text we have; script: train_data_size"),
    "schedule.group_size": (8, "ours: Table I.1 is not in the text we have; script: group_size"),
    "evaluation.split": ("published_test", "ours: which goals are tested on is not stated"),
    "evaluation.tasks": (91, "instead of val_data_size 128: all that are held out"),
    "evaluation.max_steps": (0, "ours: not stated; the world's own"),
}


MIXTURE: Sourced = VERL_AGENT | {
    "model": ("Qwen/Qwen2.5-7B-Instruct", "§4.1"),
    "split": ("train", "ours: MiniHack's and Sokoban's levels are made; [worlds] has the published ones"),
    "tasks": (2048, "16 × 128: as many as are met of a third of the groups"),
    "families": ("", "[worlds] has the paper's"),
    "max_steps": (30, "C.2: a maximum interaction count of 30"),
    "max_tokens": (4096, "C.2: maximum output tokens per step"),
    "prompt.history": (-1, "C.2: sequences of up to 32,768 tokens hold the whole episode"),
    "prompt.chat": (True, "C.1: the protocol of GEM, a conversation"),
    "prompt.state_block": (False, "§2.1: none"),
    "prompt.wording": ("full", "instead of the code's prompts: ours"),
    "prompt.style": ("tags", "code: <think> and <answer>; ours has <action>"),
    "prompt.thinking": (False, "code: thoughts are in tags of the prompt's own"),
    "prompt.admissible": (True, "ours: not stated"),
    "method.outcome": ("success", "C.1: binary"),
    "method.success_reward": (1.0, "C.1: 1 for success; a failure in ALFWorld earns 0 here, there −1"),
    "method.invalid_penalty": (0.1, "code: format_penalty; there it also ends the episode"),
    "method.std": ("population", "Eq. 5; the code leaves it out"),
    "method.over": ("trajectories", "Eq. 5"),
    "method.clip_low": (0.2, "C.2: Figure 3's ε"),
    "method.clip_high": (0.2, "C.2: Figure 3's ε"),
    "method.kl": (0.0, "C.2: no KL"),
    "method.entropy": (0.0, "code: none"),
    "method.extraction": ("trained", "§2.3"),
    "method.actor": ("trained", "§2.3"),
    "method.advantage": ("split", "Eq. 5"),
    "method.guided": (0.5, "§2.3: K/2 each"),
    "method.embedding": ("sentence", "C.2"),
    "method.encoder": ("Qwen/Qwen3-Embedding-0.6B", "C.2; instead of its last token's state: the mean of them"),
    "method.embedding_url": ("http://localhost:8000/v1", "ours; not used with this embedding"),
    "method.embedding_key": ("OPENAI_API_KEY", "ours; not used with this embedding"),
    "method.capacity": (20_000, "code: first in, first out"),
    "method.candidates": (16, "code"),
    "method.diversity": (0.4, "code: λ of Eq. 6"),
    "method.recency": (3, "instead of 300 s: a clock cannot be repeated"),
    "method.demotion": (0.5, "code: diversity_dropout_p"),
    "method.retrieval": ("nearest", "§3.2.2"),
    "method.search_scope": ("world", "code: multi_task_tabuler"),
    "method.merge_every": (5, "C.2"),
    "method.merge_scope": ("world", "code: multi_task_tabuler"),
    "method.extractor.style": ("json", "code: JSON in an answer"),
    "method.extractor.tokens": (8192, "code: max_new_tokens"),
    "method.extractor.temperature": (1.0, "code"),
    "method.extractor.top_p": (0.99, "code"),
    "method.extractor.top_k": (50, "code: the default of its generating arguments"),
    "method.extractor.batch": (64, "C.2: the training buffer"),
    "method.extractor.lr": (1e-6, "C.2"),
    "method.extractor.clip": (0.1, "C.2"),
    "method.extractor.decay": (0.5, "code: α of Eq. 7"),
    "method.extractor.cooldown": (1, "code: δ of Eq. 7"),
    "method.extractor.refinements": (True, "code: return_interaction"),
    "method.search_and_ask": ("refined", "§3.2.2"),
    "method.questions": (2, "code: max_tool_uses"),
    "method.query_batch": (16, "C.2: B"),
    "method.query_wait": (0.001, "C.2: t_max"),
    "method.search_workers": (4, "C.2"),
    "method.bank": ("", "idle: the bank is not made beforehand"),
    "method.beforehand": (256, "idle: the bank is not made beforehand"),
    "method.critic": (False, "§B.1: an extension, not in these tables"),
    "method.internalise": (0.0, "§4.3: an extension, not in these tables"),
    "method.internalise_every": (1, "idle without internalise"),
    "method.background": (True, "§3.1: a background track"),
    "schedule.groups": (48, "C.2: 384 episodes in groups of 8"),
    "schedule.group_size": (8, "C.2"),
    "schedule.iterations": (128, "C.2"),
    "schedule.lr": (1e-6, "C.2: constant"),
    "schedule.warmup": (0.0, "C.2: constant"),
    "schedule.decay": ("none", "C.2: constant"),
    "schedule.temperature": (0.99, "code"),
    "schedule.top_p": (0.99, "code"),
    "schedule.top_k": (100, "code"),
    "schedule.epochs": (1, "code"),
    "schedule.minibatches": (1, "ours: the micro-batch of 96 is how a step is computed"),
    "schedule.minibatch_rows": (0, "by minibatches"),
    "sft.steps": (0, "§4.1: from the instruction-tuned model"),
    "evaluation.split": ("", "[worlds] has them"),
    "evaluation.tasks": (0, "[worlds] has them"),
    "evaluation.every": (16, "ours: not stated"),
    "evaluation.untrained": (True, "ours: not stated"),
    "evaluation.temperature": (0.4, "ours: not stated"),
    "evaluation.top_p": (1.0, "ours: not stated"),
    "evaluation.top_k": (0, "ours: not stated"),
    "evaluation.repeats": (1, "ours: not stated"),
    "evaluation.patience": (0, "C.2: 128 steps"),
    "evaluation.max_steps": (30, "C.2: as in training"),
    "engine.lora_rank": (0, "C.2: Megatron, all parameters"),
    "engine.clip_norm": (1.0, "ours: not stated"),
    "engine.weight_decay": (0.0, "code"),
    "engine.betas": ([0.9, 0.999], "ours: not stated; AdamW's own"),
    "worlds.webshop": (
        {"split": "published_train", "evaluation": {"split": "published_test", "tasks": 128}},
        "C.1: 1,000 products; goals are ours, and their number",
    ),
    "worlds.alfworld": (
        {"tasks": 1466, "split": "published_train", "evaluation": {"split": "valid_unseen", "tasks": 134}},
        "C.1: 1,466 instances, 134 held out",
    ),
}
ON_LEVELS = {"split": "test", "tasks": 128}
"""ours: not stated"""
THREE_TASKS: Sourced = MIXTURE | {
    "world": ("minihack,webshop,alfworld", "C.3; 128 episodes of each"),
    "worlds.minihack": ({"families": "room", "evaluation": ON_LEVELS}, "C.3: Room-Ultimate-5x5"),
}
SIX_TASKS: Sourced = MIXTURE | {
    "world": ("minihack=0.5,sokoban=0.1666667,webshop=0.1666667,alfworld=0.1666666", "C.3; a sixth of the 384 each"),
    "worlds.minihack": (
        {"families": "room,maze,keyroom", "evaluation": ON_LEVELS},
        "C.3: Room-Ultimate-5x5, MazeWalk-9x9, KeyRoom-Dark-S5",
    ),
    "worlds.sokoban": ({"families": "two_boxes", "evaluation": ON_LEVELS}, "C.1: 6 × 6, two boxes"),
}
WITH_EXTRACTOR: Sourced = {
    "policies.extractor": (
        {
            "model": "Qwen/Qwen3-4B-Thinking-2507",
            "engine": {"name": "local", **to_data(LocalSettings(gradient_checkpointing=True, weight_decay=0.0))},
        },
        "§4.1; where and how it is held is ours",
    )
}
COMPLEMENTARY_ROWS: dict[str, Sourced] = {
    "baseline": {"method.extraction": ("none", "Table 1: without experience")},
    "static-online": WITH_EXTRACTOR | {"method.extraction": ("static", "Table 1: Static Online Exp.")},
    "experience-only": WITH_EXTRACTOR | {"method.actor": ("fixed", "Table 1: Exp. Only")},
    "complementary": WITH_EXTRACTOR,
}


LARGE_EXTRACTOR: Sourced = {
    "policies.extractor": (
        {**WITH_EXTRACTOR["policies.extractor"][0], "model": "Qwen/Qwen3-30B-A3B-Instruct-2507"},
        "§4.3; where and how it is held is ours",
    )
}
ALONE: Sourced = {place: own for place, own in MIXTURE.items() if not place.startswith("worlds.")} | {
    "schedule.groups": (16, "C.2: 128 episodes in groups of 8"),
    "evaluation.tasks": (128, "ours: not stated"),
    "evaluation.every": (29, "ours: not stated"),
}
IN_THE_ROOM: Sourced = ALONE | {
    "world": ("minihack", "Figure 3"),
    "families": ("room", "C.1: Room-Ultimate-5x5"),
    "tasks": (2320, "ours: 16 × 145, as many as are met"),
    "evaluation.split": ("test", "ours: not stated"),
    "schedule.iterations": (145, "C.2: 145 steps"),
}
ROOM_ROWS: dict[str, Sourced] = {
    "baseline": COMPLEMENTARY_ROWS["baseline"],
    "offline": {"method.extraction": ("offline", "Figure 3a: Offline Exp.; the bank is made by rule")},
    "static-online": COMPLEMENTARY_ROWS["static-online"],
    "complementary": WITH_EXTRACTOR,
    "all-guided": WITH_EXTRACTOR | {"method.guided": (1.0, "Figure 3b")},
    "joint": WITH_EXTRACTOR | {"method.advantage": ("joint", "Figure 3c")},
    "no-merge": WITH_EXTRACTOR | {"method.merge_every": (0, "Figure 5a")},
    "no-questions": WITH_EXTRACTOR | {"method.search_and_ask": ("none", "Figure 5b")},
    "self-distillation": WITH_EXTRACTOR | {"method.internalise": (1e-6, "Figure 9b; the actor's learning rate")},
    "actor-critic": WITH_EXTRACTOR | {"method.critic": (True, "Figure 14")},
}
SINGLE_TASKS: dict[str, Sourced] = {
    "room": IN_THE_ROOM | {"tasks": (2048, "ours: not stated")},
    "webshop": ALONE
    | {
        "world": ("webshop", "C.2"),
        "split": ("published_train", "C.1; goals are ours"),
        "evaluation.split": ("published_test", "C.1; goals are ours"),
        "schedule.iterations": (256, "C.2"),
        "schedule.groups": (8, "C.2: 64 episodes in groups of 8"),
        "schedule.warmup": (0.0390625, "C.2: 10 of 256"),
    },
    "alfworld": ALONE
    | {
        "world": ("alfworld", "C.2"),
        "split": ("published_train", "C.1"),
        "tasks": (1466, "C.1"),
        "max_steps": (40, "C.2"),
        "max_tokens": (2048, "C.2"),
        "evaluation.split": ("valid_unseen", "C.1: 134 held out"),
        "evaluation.tasks": (134, "C.1"),
        "evaluation.max_steps": (40, "C.2: as in training"),
        "schedule.iterations": (128, "C.2"),
    },
}


def shop_rows(model: Sourced, bipace: Sourced) -> dict[tuple[str, str], Sourced]:
    rows = {"grpo": VERL_AGENT, "ppo": PPO, "gigpo": GIGPO | MEAN_NORM, "hgpo": HGPO, "bipace": BIPACE | bipace}
    return {("webshop", method): model | row | IN_THE_SHOP for method, row in rows.items()}


def craft_rows(model: Sourced, window: tuple[int, str], bipace: Sourced) -> dict[tuple[str, str], Sourced]:
    rows = {"grpo": VERL_AGENT, "gigpo": GIGPO, "hgpo": HGPO, "bipace": BIPACE | bipace}
    own = model | AT_THE_BENCH | {"schedule.iterations": window}
    return {("textcraft", method): row | own for method, row in rows.items()}


def radius(epsilon: float) -> Sourced:
    return ON_7B | BIPACE | {"method.epsilon": (epsilon, "Table 4")}


REUSE_GRPO: Sourced = VERL_AGENT | {
    "model": ("Qwen/Qwen2.5-1.5B-Instruct", "§4.3"),
    "method.success_reward": (10.0, "appendix D: terminal reward +10"),
    "method.invalid_penalty": (0.01, "appendix D, in all environments"),
    "schedule.iterations": (300, "§4.3: 300 steps"),
    "max_steps": (0, "appendix D: T = 50, 40 and 30, the worlds' own"),
    "evaluation.tasks": (140, "appendix D: 140 scenes of IID"),
    "evaluation.every": (25, "ours"),
    "evaluation.temperature": (0.4, "appendix D"),
}
IN_COOKING: Sourced = {
    "world": ("cooking", "§4.1"),
    "model": ("Qwen/Qwen3-1.7B", "§4.3"),
    "prompt.thinking": (False, "§4.3: non-thinking mode"),
    "split": ("train", "appendix D: generated, 4:1 simple and hard"),
    "tasks": (4096, "ours: not stated"),
    "evaluation.split": ("test", "appendix D: generated test examples"),
    "evaluation.tasks": (1000, "appendix D"),
    "evaluation.temperature": (0.7, "appendix D: Qwen3's recommended sampling"),
    "evaluation.top_p": (0.8, "appendix D"),
    "evaluation.top_k": (20, "appendix D"),
}
IN_COUNTDOWN: Sourced = {
    "world": ("countdown", "§4.1"),
    "split": ("train", "appendix D: 3 to 4 numbers, targets 10 to 999"),
    "tasks": (30000, "ours: not stated; 4,096 puzzles can be learned by heart"),
    "evaluation.split": ("test", "appendix D"),
    "evaluation.tasks": (1024, "appendix D"),
}
LENGTH: Sourced = {
    "method.efficiency": (10.0, "appendix D: λ = 10 for both penalty-based variants"),
    "method.horizon": (None, "appendix D: T, the world's step limit"),
}
REUSERL: Sourced = LENGTH | {
    "method.max_phrase": (4, "§3.7: L = 4"),
    "method.buffer": (256, "appendix D: 256 skill sequences"),
    "method.delta": (0.05, "ours: of the reported bound, trains nothing"),
}
NO_BUFFER: Sourced = REUSERL | {"method.buffer": (0, "Table 1: without the buffer")}
REUSE_ROWS = {"grpo": {}, "round_length": LENGTH, "reuserl": REUSERL, "reuserl-batch": NO_BUFFER}

BY_OPID: Sourced = VERL_AGENT | {
    "tasks": (2400, "OPID, Table 4: train samples; which of the games is not stated"),
    "prompt.history": (5, "OPID's code: history_length on ALFWorld"),
    "max_steps": (30, "OPID, Table 6"),
    "evaluation.tasks": (140, "OPID, Table 4: seen split; the code has 128"),
    "evaluation.max_steps": (30, "OPID, Table 6"),
    "schedule.iterations": (150, "OPID, Table 6"),
    "schedule.lr": (1e-6, "OPID, Table 6"),
    "method.kl": (0.01, "OPID, Table 6"),
}
BY_OPID_IN_THE_SHOP: Sourced = {
    "world": ("webshop", "OPID, Table 1"),
    "split": ("published_train", "instead of goals 500 and up of a list that every worker shuffles for itself"),
    "max_steps": (15, "OPID, Table 6"),
    "prompt.history": (2, "OPID's code: history_length on WebShop"),
    "schedule.minibatch_rows": (64, "OPID's code: ppo_mini_batch_size on WebShop"),
    "evaluation.split": ("published_test", "instead of goals 0 to 499 of such a list: held out by product and sentence"),
    "evaluation.tasks": (128, "OPID, Table 4"),
    "evaluation.max_steps": (15, "OPID, Table 6"),
}
BY_OPID_IN_SEARCH: Sourced = {
    "world": ("searchqa", "OPID, Table 1"),
    "split": ("published_train", "appendix B.1: Search-R1's training questions, in files of the user's"),
    "tasks": (19_200, "OPID, Table 4: train samples"),
    "max_steps": (4, "OPID, Table 6"),
    "prompt.history": (4, "OPID's code: history_length on Search"),
    "method.success_reward": (1.0, "code: exact match is worth 1"),
    "method.invalid_penalty": (0.01, "OPID's code: invalid_action_penalty_coef on Search"),
    "method.kl": (0.01, "OPID, Table 6; its code has 0.001 on Search"),
    "method.entropy": (0.0, "OPID's code: entropy_coeff on Search"),
    "schedule.groups": (128, "OPID, Table 6"),
    "schedule.warmup": (0.1, "OPID's code: lr_warmup_steps_ratio on Search"),
    "schedule.minibatch_rows": (512, "OPID's code: ppo_mini_batch_size on Search"),
    "evaluation.split": ("published_test", "appendix B.1: the seven test sets, in files of the user's"),
    "evaluation.tasks": (51_713, "OPID, Table 4"),
    "evaluation.every": (0, "OPID's code: test_freq=150 on Search, the end"),
    "evaluation.max_steps": (4, "OPID, Table 6"),
}
ON_3B: Sourced = {"model": ("Qwen/Qwen2.5-3B-Instruct", "§4.1")}
ON_QWEN3: Sourced = {
    "model": ("Qwen/Qwen3-1.7B", "§4.1: Qwen3-1.7B-Instruct, which OPID's code loads by this name"),
    "prompt.thinking": (False, "OPID's code: enable_thinking=False"),
}
RETRIEVED: Sourced = {"method.handbook": ("", "instead: the world's own; --handbook loads those of SDAR's release")}
DISTILLED: Sourced = {
    "method.mixture": (0.5, "ours; the jsd's, not used"),
    "method.likeliest": (0, "A.1.2: the whole vocabulary"),
    "method.support": ("student", "ours; without top-K not used"),
}
OPID: Sourced = {
    "method.skill_weight": (0.001, "Table 6: skill coefficient"),
    "method.analyzer": ("model", "appendix B.4: GLM-5.2"),
    "method.routing": ("critical_first", "§3.3"),
    "method.notes": ("true", "§3.2: the skills of the episode itself"),
    "method.gradient_every": (10, "ours: measures, trains nothing"),
    "method.gradient_rows": (256, "ours: measures, trains nothing"),
    "method.critical_steps": (5, "appendix B.4: at most 5 on ALFWorld and WebShop"),
    "method.normalise_shift": (False, "§3.3; OPID's code: normalize_teacher_adv"),
    "method.clip_shift": (None, "§3.3; OPID's code: clip_teacher_adv"),
    "method.analyzer_temperature": (0.4, "appendix B.4"),
    "method.analyzer_tokens": (4096, "appendix B.4"),
    "policies.analyzer": (
        {
            "model": "GLM-5.2",
            "engine": {
                "name": "chat",
                "url": "http://localhost:8000/v1",
                "key_variable": "OPENAI_API_KEY",
                "concurrency": 16,
                "timeout_s": 120.0,
            },
        },
        "appendix B.4; the address is the user's",
    ),
}
OPID_ROWS: dict[str, Sourced] = {
    "grpo": {},
    "skill_grpo": RETRIEVED,
    "opsd": RETRIEVED
    | DISTILLED
    | {
        "method.divergence": ("released", "SDAR's code: its gated likelihood, pg_loss_coef=0"),
        "method.distillation_weight": (0.01, "SDAR's code: as for SDAR"),
    },
    "grpo_opsd": RETRIEVED
    | DISTILLED
    | {
        "method.divergence": ("released", "SDAR's code: gate_beta=0"),
        "method.distillation_weight": (0.01, "SDAR's code: as for SDAR"),
    },
    "skill_sd": RETRIEVED | {"method.distillation_weight": (0.001, "SDAR's code, Skill-SD")},
    "rlsd": RETRIEVED
    | {
        "method.modulation": (0.5, "SDAR's code, RLSD: l"),
        "method.modulation_bound": (0.2, "SDAR's code, RLSD: clip 0.8 to 1.2"),
        "method.modulation_iterations": (100, "SDAR's code, RLSD: linear to 0 over 100 steps"),
    },
    "sdar": RETRIEVED | {"method.distillation_weight": (0.01, "SDAR's code"), "method.gate": (5.0, "SDAR's code: gate_beta")},
    "opid": OPID,
}
TWO_CRITICAL: Sourced = {"method.critical_steps": (2, "appendix B.4: at most 2 in search")}
ROUTINGS: dict[str, Sourced] = {
    "opid": {"method.routing": ("critical_first", "§3.3")},
    "no-episode-skill": {"method.routing": ("step", "Table 2")},
    "no-step-skill": {"method.routing": ("episode", "Table 2")},
    "no-routing": {"method.routing": ("additive", "Table 3; OPID's code: additive")},
}


def opid_table_1(model: Sourced) -> dict[tuple[str, str], Sourced]:
    """Eight trained rows in three worlds."""
    worlds: dict[str, Sourced] = {"alfworld": {}, "webshop": BY_OPID_IN_THE_SHOP, "searchqa": BY_OPID_IN_SEARCH}
    return {
        (world, method): BY_OPID | own | model | row | (TWO_CRITICAL if (world, method) == ("searchqa", "opid") else {})
        for world, own in worlds.items()
        for method, row in OPID_ROWS.items()
    }


def of_the_data(share: int) -> Sourced:
    also: Sourced = {"evaluation.also": ("valid_unseen:134", "Table 8; Table 4: 134 games")} if share == 100 else {}
    return {"tasks": (24 * share, f"Table 7: {share}% of Table 4's 2,400")} | also


CONSTANT_CONTEXT: Sourced = {
    "world": ("alfworld", "Table 5"),
    "model": ("Qwen/Qwen3-8B", "Table 5"),
    "split": ("published_train", "§4.1"),
    "tasks": (3553, "Table 5: 200 games for each family are drawn from them"),
    "families": ("", "Table 5: a module's skill says which"),
    "max_steps": (30, "Table 5: max episode steps"),
    "max_tokens": (64, "Table 5: max new tokens"),
    "prompt.history": (1, "Eq. 2: the turn before"),
    "prompt.state_block": (True, "Eq. 2"),
    "prompt.block": ("paper", "§7.5: the state-block schema"),
    "prompt.bound": (4000, "ours; there 1,024 tokens in imitation"),
    "prompt.wording": ("full", "Eq. 2; the words around it are ours"),
    "prompt.style": ("bare", "§3.2: the target is the action, not a reasoning trace"),
    "prompt.chat": (False, "Eq. 2: one text"),
    "prompt.thinking": (False, "§3.2: no reasoning trace"),
    "prompt.admissible": (False, "§3.2: no list of actions"),
    "method.outcome": ("success", "Table 6: success, not a score"),
    "method.success_reward": (3.0, "Table 6"),
    "method.progress_weight": (1.0, "Eq. 7"),
    "method.error_weight": (1.0, "Eq. 7"),
    "method.step_cost": (0.01, "Table 6"),
    "method.without": ([], "Table 6: all components"),
    "method.invalid_penalty": (0.0, "Table 6: the tracker's own penalty"),
    "method.std": ("population", "Eq. 8"),
    "method.over": ("trajectories", "not used: Eq. 8 is over all steps"),
    "method.clip_low": (0.2, "not used: Eq. 9 has no ratio"),
    "method.clip_high": (0.2, "not used: Eq. 9 has no ratio"),
    "method.gamma": (0.98, "Table 5"),
    "method.kl": (0.02, "Table 5"),
    "method.penalty": ("sampled", "Eq. 9"),
    "method.entropy": (0.0, "Eq. 9 has none"),
    "schedule.groups": (1, "ours: games in an update are not stated"),
    "schedule.group_size": (4, "Table 5: rollouts per group K"),
    "schedule.iterations": (200, "Table 5: 200 train games a family"),
    "schedule.lr": (5e-6, "Table 5"),
    "schedule.warmup": (0.0, "ours: stated for imitation only"),
    "schedule.decay": ("none", "ours: stated for imitation only"),
    "schedule.temperature": (0.8, "Table 5"),
    "schedule.top_p": (0.95, "Table 5"),
    "schedule.top_k": (0, "ours: not stated"),
    "schedule.epochs": (1, "Table 5: RL epochs"),
    "schedule.minibatches": (1, "ours: not stated"),
    "schedule.minibatch_rows": (0, "ours: not stated"),
    "sft.steps": (0, "Table 5: epochs"),
    "sft.epochs": (3.0, "Table 5"),
    "sft.batch": (16, "Table 5: effective batch"),
    "sft.tasks": (3553, "instead of 2,628 trajectories after filtering: our explorer's"),
    "sft.lr": (2e-4, "Table 5"),
    "sft.warmup": (0.1, "Table 5: cosine, warmup ratio 0.1"),
    "sft.expert": ("", "instead of the dataset's expert: our explorer"),
    "sft.noise": (0.0, "§3.2: expert trajectories as they are"),
    "sft.renamed": (0, "§3.2: expert trajectories as they are"),
    "sft.questions": (0, "Stage 1 has expert trajectories only"),
    "sft.from": ("", "instead of the dataset's expert: our explorer"),
    "evaluation.split": ("valid_seen", "Table 5: eval games, seen"),
    "evaluation.tasks": (140, "Table 5"),
    "evaluation.panel": ("", "ours"),
    "evaluation.also": ("", "ours"),
    "evaluation.repeats": (3, "Table 5: seeds 0, 1, 2"),
    "evaluation.every": (0, "ours: after each stage"),
    "evaluation.patience": (0, "ours: all iterations"),
    "evaluation.untrained": (False, "ours"),
    "evaluation.temperature": (0.4, "Table 5"),
    "evaluation.top_p": (0.95, "Table 5"),
    "evaluation.top_k": (0, "Table 5 has none"),
    "evaluation.max_steps": (30, "ours: not stated; Tables 2 and 4 rule out a limit above 32"),
    "engine.lora_rank": (64, "Table 5"),
    "engine.lora_alpha": (128.0, "Table 5"),
    "engine.lora_dropout": (0.05, "Table 5"),
    "engine.lora_targets": ([f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")], "Table 5"),
    "engine.clip_norm": (1.0, "Table 5: gradient clip"),
    "engine.weight_decay": (0.01, "ours: not stated"),
    "engine.betas": ([0.9, 0.999], "ours: not stated; AdamW's own"),
    "engine.value_head": (False, "no critic"),
}
ALL_FAMILIES: Sourced = CONSTANT_CONTEXT | {
    "schedule.iterations": (1000, "§4.2: one module for all; 200 games for each of five families"),
}

SHOPPING: Sourced = CONSTANT_CONTEXT | {
    "world": ("webshop", "Table 5"),
    "tasks": (2400, "Table 5: 200 goals are drawn from them; the number is ours"),
    "max_steps": (15, "Table 5: max episode steps"),
    "prompt.block": ("paper", "§3.1: query, product, selected and remaining options, readiness"),
    "prompt.bound": (40000, "ours; there 2,048 tokens in imitation"),
    "sft.tasks": (1571, "Table 5: expert trajectories; ours are the shopper's, of which it wins four in five"),
    "sft.expert": ("", "instead of the dataset's expert: our shopper"),
    "sft.from": ("", "instead of the dataset's expert: our shopper"),
    "evaluation.split": ("published_test", "§7.1: held-out goals"),
    "evaluation.tasks": (500, "Table 5"),
    "evaluation.max_steps": (15, "Table 5: of training; ReAct's 14.4 steps in Table 2 agree"),
}

IN_SCIENCE: Sourced = CONSTANT_CONTEXT | {
    "world": ("scienceworld", "Table 5"),
    "split": ("eto_train", "§7.1: ETO's protocol, with its step limits"),
    "tasks": (1483, "§7.1: ETO's list; the paper counts 1,617 trajectories"),
    "max_steps": (120, "Table 5: ETO's per-task limits, which are at most this"),
    "prompt.block": ("paper", "§3.1: phase, selected entity, inventory, answer room, completed subgoals"),
    "prompt.bound": (12000, "ours; there 1,024 tokens in imitation"),
    "method.success_reward": (1.0, "Table 6: +1 besides Δscore / 33"),
    "schedule.iterations": (56, "§7.1: state_change has 56 variants; one RL epoch"),
    "sft.epochs": (1.0, "Table 5"),
    "sft.tasks": (1483, "§7.1: one gold path for each variation"),
    "sft.expert": ("", "instead of the dataset's: the simulator's gold paths"),
    "sft.from": ("", "instead of the dataset's: the simulator's gold paths"),
    "evaluation.split": ("eto_dev", "Table 5: eval games, seen"),
    "evaluation.tasks": (194, "Table 5"),
    "evaluation.max_steps": (120, "Table 5: ETO's per-task limits, which are at most this"),
}


def without_in_the_shop(*components: str) -> Sourced:
    return SHOPPING | {"method.without": (list(components), "Table 3 and Figure 3")}


def without(*components: str) -> Sourced:
    return ALL_FAMILIES | {"method.without": (list(components), "Table 3 and Figure 3")}


PUBLISHED: dict[str, dict[tuple[str, str], Sourced]] = {
    "bipace-table2-1.5b": {
        ("alfworld", "grpo"): ON_1_5B | VERL_AGENT,
        ("alfworld", "ppo"): ON_1_5B | PPO,
        ("alfworld", "gigpo"): ON_1_5B | GIGPO,
        ("alfworld", "hgpo"): ON_1_5B | HGPO,
        ("alfworld", "bipace"): ON_1_5B | BIPACE | CALIBRATED_1_5B,
    },
    "bipace-table2-7b": {
        ("alfworld", "grpo"): ON_7B | VERL_AGENT,
        ("alfworld", "ppo"): ON_7B | PPO,
        ("alfworld", "gigpo"): ON_7B | GIGPO,
        ("alfworld", "hgpo"): ON_7B | HGPO,
        ("alfworld", "bipace"): ON_7B | BIPACE,
    },
    "bipace-table3-1.5b": craft_rows(ON_1_5B, (150, "ours: not in the text we have; script: total_epochs"), CALIBRATED_1_5B),
    "bipace-table3-7b": craft_rows(ON_7B, (50, "Table L.3 and Figure 3: the first 50 steps are Table 3's window"), {}),
    "bipace-table4": {
        ("alfworld", "actor"): radius(0.10),
        ("alfworld", "ngram"): radius(0.25) | {"method.embedder": ("ngram", "appendix K: HashNgram, its radius 0.25")},
        ("alfworld", "bigpo"): ON_7B | BIGPO,
        ("alfworld", "radius-0.05"): radius(0.05),
        ("alfworld", "radius-0.15"): radius(0.15),
        ("alfworld", "radius-0.20"): radius(0.20),
    },
    "bipace-table-l1": {
        ("alfworld", "state-only"): ON_7B | BIGPO,
        ("alfworld", "first-token"): ON_7B | BIPACE | FIRST_TOKEN,
        ("alfworld", "action-tag"): ON_7B | BIPACE | ACTION_TAG,
        ("alfworld", "q-style"): ON_7B | BIPACE | Q_STYLE,
        ("alfworld", "identity"): ON_7B
        | BIPACE
        | Q_STYLE
        | {
            "method.embedder": ("identity", "ours: PACE on exact observations"),
            "method.epsilon": (0.0, "ours: equal observations"),
        },
    },
    "bipace-table2-webshop-7b": shop_rows(ON_7B, {}),
    "bipace-table2-webshop-1.5b": shop_rows(
        ON_1_5B, {key: value for key, value in CALIBRATED_1_5B.items() if key != "schedule.iterations"}
    ),
    "reuserl-table1": {
        (world, method): REUSE_GRPO | own | row
        for world, own in (("alfworld", {}), ("cooking", IN_COOKING), ("countdown", IN_COUNTDOWN))
        for method, row in REUSE_ROWS.items()
    },
    "opid-table1-3b": opid_table_1(ON_3B),
    "opid-table1-7b": opid_table_1(ON_7B),
    "opid-table1-1.7b": opid_table_1(ON_QWEN3),
    "opid-tables23": {
        (world, method): BY_OPID | own | ON_3B | OPID | routing
        for world, own in (("alfworld", {}), ("webshop", BY_OPID_IN_THE_SHOP))
        for method, routing in ROUTINGS.items()
    },
    "opid-tables78": {
        (f"data-{share}", method): BY_OPID | ON_3B | row | of_the_data(share)
        for share in (20, 40, 60, 80, 100)
        for method, row in (("grpo", {}), ("opid", OPID))
    },
    "complementary-table1": {("three-tasks", method): THREE_TASKS | own for method, own in COMPLEMENTARY_ROWS.items()},
    "complementary-figure6": {
        (world, method): task | COMPLEMENTARY_ROWS[method]
        for world, task in SINGLE_TASKS.items()
        for method in ("baseline", "complementary")
    },
    "complementary-figures3-5-9b-14": {("room", method): IN_THE_ROOM | own for method, own in ROOM_ROWS.items()},
    "complementary-figure9a": {
        ("three-tasks", "extractor-4b"): THREE_TASKS | WITH_EXTRACTOR,
        ("three-tasks", "extractor-30b"): THREE_TASKS | LARGE_EXTRACTOR,
    },
    "complementary-figure9d": {
        ("six-tasks", method): SIX_TASKS | COMPLEMENTARY_ROWS[method] for method in ("baseline", "complementary")
    },
    "constant-context-table1": {("alfworld", ""): CONSTANT_CONTEXT},
    "constant-context-table1-webshop": {("webshop", ""): SHOPPING},
    "constant-context-table1-scienceworld": {("scienceworld", ""): IN_SCIENCE},
    "constant-context-table3-webshop": {
        ("webshop", "whole"): SHOPPING,
        ("webshop", "no-state-block"): SHOPPING | {"prompt.state_block": (False, "Table 3")},
        ("webshop", "outcome-only"): without_in_the_shop("progress", "error", "step_cost"),
        ("webshop", "no-progress"): without_in_the_shop("progress"),
        ("webshop", "no-error"): without_in_the_shop("error"),
        ("webshop", "no-step-cost"): without_in_the_shop("step_cost"),
    },
    "constant-context-table3": {
        ("alfworld", "whole"): ALL_FAMILIES,
        ("alfworld", "no-state-block"): ALL_FAMILIES | {"prompt.state_block": (False, "Table 3")},
        ("alfworld", "outcome-only"): without("progress", "error", "step_cost"),
        ("alfworld", "no-progress"): without("progress"),
        ("alfworld", "no-error"): without("error"),
        ("alfworld", "no-step-cost"): without("step_cost"),
    },
}
"""by recipe, then by (world, method) of a comparison; a run has an empty method name"""

SEEDS = {
    "bipace-table2-1.5b": ([0, 1, 2], "Table 2: three seeds"),
    "bipace-table2-7b": ([0, 1, 2], "Table 2: three seeds"),
    "bipace-table2-webshop-1.5b": ([0, 1, 2], "Table 2: three seeds"),
    "bipace-table2-webshop-7b": ([0, 1, 2], "Table 2: three seeds"),
    "bipace-table3-1.5b": ([0, 1, 2], "appendix O: the same seeds as BiPACE's, three"),
    "bipace-table3-7b": ([0, 1, 2], "appendix O: the same seeds as BiPACE's, three"),
    "bipace-table4": ([0, 1, 2], "Table 4: three seeds for the embedder, seed 0 for the radius"),
    "bipace-table-l1": ([0, 1, 2], "Table L.1: three seeds"),
    "reuserl-table1": ([0, 1, 2], "§4.3: three independent runs"),
    "opid-table1-3b": ([0], "ours: not stated"),
    "opid-table1-7b": ([0], "ours: not stated"),
    "opid-table1-1.7b": ([0], "ours: not stated"),
    "opid-tables23": ([0], "ours: not stated"),
    "opid-tables78": ([0], "ours: not stated"),
    "complementary-table1": ([0], "ours: not stated"),
    "complementary-figure6": ([0], "ours: not stated"),
    "complementary-figures3-5-9b-14": ([0], "ours: not stated"),
    "complementary-figure9a": ([0], "ours: not stated"),
    "complementary-figure9d": ([0], "ours: not stated"),
    "constant-context-table1": ([42], "Table 5: training seed"),
    "constant-context-table1-webshop": ([42], "Table 5: training seed"),
    "constant-context-table1-scienceworld": ([42], "Table 5: training seed"),
    "constant-context-table3-webshop": ([42], "Table 5: training seed"),
    "constant-context-table3": ([42], "Table 5: training seed"),
}
