"""The local engine: transformers and peft in this process, on CPU or one GPU. `policy.load_policy` is the way in.

Nothing is imported here, so that settings can be read without torch.
"""
