"""The local engine: transformers and peft in this process, on CPU or one GPU. Entry point: `policy.load_policy`.

No torch import here, so settings load quickly.
"""

import os

# Idle OpenMP threads should sleep: on shared cores, two spinning threads measured ten times slower than one. Set before torch
# is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# With mimalloc (torch on ARM), memory that is free for 10 ms is returned to the system; page faults to get it back took an
# eighth of an update.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
