"""Tacit from Python: `tacit.train`, `tacit.evaluate`, `tacit.open_run`."""
