#!/usr/bin/env bash
# Constant context, Table 2: steps and tokens, greedy, seed 42, at most 64 new tokens.
#     ALFWORLD_DATA=… WEBSHOP_DATA=… SCIENCEWORLD_ETO=… bash "$(tacit list recipes constant-context-table2)" modules
# The modules are those of constant-context-table1*.toml: `alfworld`, `webshop` and `scienceworld` below the directory, each where it is. `--tokens` prints, beside the modules' own
# prompts, what ReAct-1step and ReAct-full would have read on the same turns, with a list of actions and without: the paper speaks of
# none. It has ReAct play episodes of its own; that is the rest, with a list (--no-admissible plays without; ScienceWorld has none).
# Laptop version, after `tacit train --config quickstart`:
#     tacit eval runs/alfworld-constant_context-0 --tokens --temperature 0
set -euo pipefail
modules=${1:-modules}

if [ -d "$modules/alfworld" ]; then
    tacit eval "$modules/alfworld" --tokens --split valid_seen --tasks 140 --repeats 1 --temperature 0 --seed 42
    tacit eval "$modules/alfworld" --tokens --split valid_unseen --tasks 134 --repeats 1 --temperature 0 --seed 42
    tacit eval Qwen/Qwen3-8B --world alfworld --history 1 --split valid_seen --tasks 140 --temperature 0 --seed 42 --max-steps 30 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world alfworld --history 1 --split valid_unseen --tasks 134 --temperature 0 --seed 42 --max-steps 30 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world alfworld --history -1 --split valid_seen --tasks 140 --temperature 0 --seed 42 --max-steps 30 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world alfworld --history -1 --split valid_unseen --tasks 134 --temperature 0 --seed 42 --max-steps 30 --max-tokens 64
fi
if [ -d "$modules/webshop" ]; then
    tacit eval "$modules/webshop" --tokens --split published_test --tasks 500 --repeats 1 --temperature 0 --seed 42
    tacit eval Qwen/Qwen3-8B --world webshop --history 1 --split published_test --tasks 500 --temperature 0 --seed 42 --max-steps 15 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world webshop --history -1 --split published_test --tasks 500 --temperature 0 --seed 42 --max-steps 15 --max-tokens 64
fi
if [ -d "$modules/scienceworld" ]; then
    tacit eval "$modules/scienceworld" --tokens --split eto_dev --tasks 194 --repeats 1 --temperature 0 --seed 42
    tacit eval "$modules/scienceworld" --tokens --split eto_test --tasks 211 --repeats 1 --temperature 0 --seed 42
    tacit eval Qwen/Qwen3-8B --world scienceworld --history 1 --split eto_dev --tasks 194 --temperature 0 --seed 42 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world scienceworld --history 1 --split eto_test --tasks 211 --temperature 0 --seed 42 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world scienceworld --history -1 --split eto_dev --tasks 194 --temperature 0 --seed 42 --max-tokens 64
    tacit eval Qwen/Qwen3-8B --world scienceworld --history -1 --split eto_test --tasks 211 --temperature 0 --seed 42 --max-tokens 64
fi
