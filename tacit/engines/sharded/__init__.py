"""The sharded engine: one model over several processes, each with a part of every weight (FSDP2). `policy.load_policy` is the
way in.

    driver    this process: what the protocols ask for, and a copy of the model, which samples where there are no servers
    ranks     N processes that hold the weights in shards, score and learn
    servers   M processes that sample (vLLM)

Nothing is imported here, so that settings can be read without torch.
"""
