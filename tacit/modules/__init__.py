"""Skill modules: what was learned for one kind of work, as a directory that can be kept, checked, passed on and played.

from tacit.modules import Agent

agent = Agent.load("modules/alfworld")
"""

from tacit.modules.agent import Agent
from tacit.modules.module import Module, find_modules, read_module
from tacit.modules.router import Router

__all__ = ["Agent", "Module", "Router", "find_modules", "read_module"]
