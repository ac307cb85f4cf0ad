"""The address under which module manifests and draft files name logged work; the code is in `logs.py`."""

from tacit.modules.logs import WORK, work_of

__all__ = ["WORK", "work_of"]
