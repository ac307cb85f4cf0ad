"""Integrations: our worlds as environments of other libraries, and their environments as worlds.

    episode.py     shared code: an episode of one of our worlds; a seeded environment as a world
    gymnasium.py   Gymnasium     (extra gymnasium)
    openenv.py     OpenEnv       (extra openenv)
    verifiers.py   verifiers     (extra verifiers)

Each needs its extra; nothing else in Tacit imports them.
"""
