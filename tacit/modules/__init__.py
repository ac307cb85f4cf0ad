"""Skill modules: a trained policy for one kind of task, as a directory that can be verified, shared and played.

from tacit.modules import Agent

agent = Agent.load("modules/alfworld")
"""

from tacit.modules.agent import Agent, Router
from tacit.modules.module import Module, find_modules, read_module

__all__ = ["Agent", "Module", "Router", "find_modules", "read_module"]
