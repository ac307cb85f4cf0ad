"""Trackers and rewards drafted by a model: prompts, sandbox, and checks against recorded episodes."""
