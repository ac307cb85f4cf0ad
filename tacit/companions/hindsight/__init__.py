"""OPID's hindsight: finished episodes are analyzed, and their skills are injected into copies of the prompts (the teacher)."""
