#!/usr/bin/env bash
# Constant context, Table 2: steps and tokens, greedy, seed 42, on the modules of constant-context-table1.toml.
#     ALFWORLD_DATA=… bash "$(tacit list recipes constant-context-table2)" modules/alfworld
# The first two print, beside the modules' own prompts, what ReAct-1step and ReAct-full would have read on the same turns, with a
# list of actions and without: the paper speaks of none. It has ReAct play episodes of its own; that is the rest, with a list
# (--no-admissible plays without). WebShop: constant-context-table1-webshop. Not here: ScienceWorld.
# Laptop version, after `tacit train --config quickstart`:
#     tacit eval runs/alfworld-constant_context-0 --tokens --temperature 0
set -euo pipefail
modules=${1:-modules/alfworld}

tacit eval "$modules" --tokens --split valid_seen --tasks 140 --repeats 1 --temperature 0 --seed 42
tacit eval "$modules" --tokens --split valid_unseen --tasks 134 --repeats 1 --temperature 0 --seed 42

tacit eval Qwen/Qwen3-8B --world alfworld --history 1 --split valid_seen --tasks 140 --temperature 0 --seed 42 --max-steps 30
tacit eval Qwen/Qwen3-8B --world alfworld --history 1 --split valid_unseen --tasks 134 --temperature 0 --seed 42 --max-steps 30
tacit eval Qwen/Qwen3-8B --world alfworld --history -1 --split valid_seen --tasks 140 --temperature 0 --seed 42 --max-steps 30
tacit eval Qwen/Qwen3-8B --world alfworld --history -1 --split valid_unseen --tasks 134 --temperature 0 --seed 42 --max-steps 30
