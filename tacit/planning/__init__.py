"""Estimates for runs on larger machines: whether they fit in memory, and how long an iteration takes."""
