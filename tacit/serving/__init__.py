"""Skill modules as a service: sessions over HTTP, an OpenAI-compatible door, metrics, a page, and tools over MCP.

    tacit serve modules/household

Every session is an episode of its own; what they ask of the model at the same time is answered in one batch.
"""
