"""w · h / √(mean h² + ε) by row on a GPU, once through memory; without a gradient, for the sampler.

A compiler reads a row of 1,536 numbers, which are no power of two, at a third of the memory's speed.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch.nn.functional import rms_norm

from tacit.engines.local.passes.kernels import early, holds, on_its_device
from tacit.engines.local.passes.packing import power_from

WARPS = 2
MOST_WIDE = 8192
"""numbers of a row that a program has in its registers"""


@on_its_device
def norm_rows(h_ND: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Rows lie end to end."""
    from tacit.engines.local.passes.norming_kernel import norm_row  # triton is only there where there is a GPU

    rows, width = h_ND.shape
    normed_ND = torch.empty_like(h_ND)
    if rows:
        shape = {"WIDTH": width, "PADDED": power_from(width), "num_warps": WARPS}
        norm_row[(rows,)](h_ND, weight, normed_ND, epsilon, **shape, **early(h_ND.device))
    return normed_ND


@cache
def has_norming_kernel(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    fits = width <= MOST_WIDE and dtype in (torch.bfloat16, torch.float16)
    return fits and holds("norms", device, partial(_agrees, device, dtype, width))


def _agrees(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Of rows from small to large."""
    generator = torch.Generator(device).manual_seed(0)
    h_ND = torch.randn(7, width, generator=generator, device=device) * torch.logspace(-3, 3, 7, device=device)[:, None]
    h_ND, weight = h_ND.to(dtype), torch.randn(width, generator=generator, device=device).to(dtype)
    expected = rms_norm(h_ND.float(), (width,), weight.float(), 1e-5)
    found = norm_rows(h_ND, weight, 1e-5).float()
    return torch.allclose(found, expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
