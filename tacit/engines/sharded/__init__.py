"""The sharded engine: one model over several processes, each with a shard of every weight (FSDP2). Entry point:
`policy.load_policy`.

    driver    this process: implements the protocols; has a copy of the model, which samples if there are no servers
    ranks     N processes that hold the weights in shards, score and train
    servers   M processes that sample (vLLM)

Nothing is imported here, so that settings can be read without torch.
"""
