"""Skills of errands by hand, for methods that retrieve one."""

from __future__ import annotations

HANDBOOK = {"": "open the door behind which the thing was seen before; take it as soon as it is in sight"}
