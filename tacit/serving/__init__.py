"""Serve skill modules: sessions over HTTP, an OpenAI-compatible API, metrics, a web page, and tools over MCP.

    tacit serve modules/household

Each session is an episode. Concurrent requests are batched.
"""
