"""`python -m tacit` is `tacit`."""

from __future__ import annotations

import sys

from tacit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
