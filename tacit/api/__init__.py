"""Tacit from a program of your own: `tacit.train`, `tacit.evaluate`, `tacit.open_run`. The command line's way, without it."""
