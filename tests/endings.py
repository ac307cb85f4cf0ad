"""How a process that a test has started comes to its end."""

from __future__ import annotations

import subprocess


def ended(process: subprocess.Popen) -> int:
    """Ask it to end, if it has not, and say with what status it did."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(60)
    finally:
        assert process.stdout is not None
        process.stdout.close()
