"""Arithmetic of runs that are larger than this machine: what would fit, how long an iteration would take, who would wait."""
