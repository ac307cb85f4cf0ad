"""Grids of characters: reading, paths, regions, distances."""

from .grid import Grid, parse_moves
from .search import cheapest, components, flood, reachable, shortest_path, spread

__all__ = ["Grid", "cheapest", "components", "flood", "parse_moves", "reachable", "shortest_path", "spread"]
