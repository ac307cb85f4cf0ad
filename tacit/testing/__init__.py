"""Suites against the protocols, for whoever writes a piece of their own. They need pytest; nothing else here imports them."""
