"""Arithmetic of runs that are larger than this machine: what fits, and how long an iteration takes."""
