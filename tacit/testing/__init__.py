"""Conformance test suites for custom engines. They need pytest; nothing else in Tacit imports them."""
