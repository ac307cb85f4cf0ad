"""Credit, measured directly: what estimators say a step was worth, against what it was worth.

midway       begin an episode in the middle: replay its first actions, then let the policy go on
truth        Q and V of every step of a group under the present policy, by Monte Carlo
estimators   GRPO, GiGPO, HGPO, BiGPO, BiPACE, … as credit per step, and the partitions they rest on
measured     one group's credits beside its truth, as plain numbers that can be kept
agreement    correlation and cosine, freed of the Monte Carlo noise, with intervals over tasks
"""
