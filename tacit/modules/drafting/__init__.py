"""Trackers and rewards that a model drafts: asked for, shown, run behind a fence, and checked against recorded episodes."""
