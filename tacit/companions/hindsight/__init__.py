"""Hindsight: finished episodes are analysed, and what they teach is told to a copy of the prompt that was read (OPID)."""
