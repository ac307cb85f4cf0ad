"""The local engine: transformers and peft in this process, on CPU or one GPU. `policy.load_policy` is the way in.

Nothing is imported here, so that settings can be read without torch.
"""

import os

# Threads that wait for work should sleep, not spin: on cores shared with anything else, two spinning threads were measured
# ten times slower than one. OpenMP reads this when torch is loaded, so it is set before; what the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Where torch allocates with mimalloc (on ARM), memory that was free for 10 ms goes back to the system and is faulted in again
# page by page by the next update: an eighth of its time.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
