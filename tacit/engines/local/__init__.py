"""The local engine: transformers and peft in this process, on CPU or one GPU. Entry point: `policy.load_policy`.

No torch import here, so settings load quickly.
"""

import os

# Idle OpenMP threads should sleep: on shared cores, two spinning threads measured ten times slower than one. Must be set before
# torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Where torch uses mimalloc (on ARM), memory free for 10 ms goes back to the system; faulting it in again took an eighth of an
# update.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
