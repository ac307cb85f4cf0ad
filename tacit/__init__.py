"""Train language-model agents that turn experience into skill."""

__version__ = "0.1.0"
DISTRIBUTION = "tacit-agents"
"""what pip calls it: on the registry `tacit` is another project"""
