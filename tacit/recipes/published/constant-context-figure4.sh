#!/usr/bin/env bash
# Constant context, Figure 4: WebShop's success after imitation alone, by the number of demonstrations, on 100 goals.
#     WEBSHOP_DATA=… bash "$(tacit list recipes constant-context-figure4)" runs/figure4
# Stated (§7.3): 5, 25 and 1,000 demonstrations, and all; the counts between are ours. The rest is constant-context-table1-webshop.
# Laptop version: tacit compare demonstrations (on the household)
set -euo pipefail
out=${1:-runs/figure4}

tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 5 --evaluation.tasks 100 --out "$out/5"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 25 --evaluation.tasks 100 --out "$out/25"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 100 --evaluation.tasks 100 --out "$out/100"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 250 --evaluation.tasks 100 --out "$out/250"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 500 --evaluation.tasks 100 --out "$out/500"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 1000 --evaluation.tasks 100 --out "$out/1000"
tacit train --config published/constant-context-table1-webshop --iterations 0 --sft.tasks 1571 --evaluation.tasks 100 --out "$out/1571"
