"""From the host to a device that is at work, without waiting for it."""

from __future__ import annotations

import numpy as np
import torch


def handed(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """On the device once it has done what it was told before. A GPU fetches it from memory that stays until then; of any other
    it would be waited for."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and array.size:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
