"""Train language-model agents that turn experience into skill."""

__version__ = "0.1.0"
