"""Doors to the field: our worlds in other trainers' loops, and their worlds in ours.

    doors/
      episode.py     one of our worlds, played by somebody else: which task, how long, what is paid
      foreign.py     what it takes to be a world of ours, for those of others
      gymnasium.py   Gymnasium, both ways     (extra gymnasium)
      openenv.py     OpenEnv, both ways       (extra openenv)
      verifiers.py   verifiers, both ways     (extra verifiers; verifiers_worlds.py is the way in)

Each needs its extra and says so where it is missing; nothing else of Tacit imports them.
"""
