"""Attention of chunked prefill: the KV cache it leaves, and that decoding slots do not change. Without a GPU, Triton's
interpreter runs the kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interpreted import assert_interpreted
from random_models import make_model, with_adapter

from tacit.engines.local.fast.chunked_prefill import ChunkBuffer, ChunkedPrefill, chunk_sizes
from tacit.engines.local.fast.decode_attention import BLOCK_TOKENS, has_chunk_kernel
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward, PackedPrompts

INTERPRETED = """
import torch
from tacit.engines.local.fast import decode_attention
for heads in ((3, 3, 64), (2, 6, 128), (1, 7, 16), (2, 1, 32), (1, 16, 16)):
    assert decode_attention._check_chunk_kernel(torch.device("cpu"), torch.float32, *heads), heads
assert decode_attention._check_chunk_kernel(torch.device("cpu"), torch.float16, 2, 6, 64)
assert decode_attention._check_chunk_kernel(torch.device("cpu"), torch.float16, 1, 3, 128)
"""

# three prompts over several steps beside two decoding slots; what may not be read is infinite and must stay so
IN_A_MODEL = """
import numpy as np, torch
from tacit.engines.local.fast import kv_cache
from tacit.engines.local.fast import decode_attention
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.fast.chunked_prefill import ChunkBuffer, ChunkedPrefill
from tests.engines.random_models import make_model
decode_attention._choose_splits = lambda *known: 2
decode_attention._sm_count = lambda device: 16
for family in ("qwen3", "llama-untied-bias"):
    forward, seen = LlamaForward(make_model(family)), {}
    forward._cpu_step_allowed = False
    for kernel in (False, True):
        kv_cache.has_decode_kernel = lambda *known: kernel
        cache = kv_cache.KeyValueCache(forward.shape)
        cache._head_major = not kernel
        cache.resize(5, 128)
        rng, readings, found = np.random.default_rng(0), ChunkedPrefill(), []
        lengths = (1, 40, 91)
        for rows in (cache._keys, cache._values):
            for layer in rows:
                layer[2:] = float("inf")
        readings.add(np.array([2, 4, 3]), [rng.integers(0, 256, length) for length in lengths])
        room, step = ChunkBuffer(48, 4, torch.device("cpu")), 0
        tokens, positions = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([0, 5, 127, 127, 127])
        while (look := readings.schedule(2, (48,), 2)) is not None:
            room.fill(look.packed_KX)
            for at in range(len(look.packed_KX)):
                with torch.no_grad():
                    logits = forward.decode_step(tokens, positions, cache, 128, room.select(torch.tensor([at])))
                found.append(logits[:2])
                tokens, positions, step = tokens + 1, (positions + 1).clamp(max=127), step + 1
        for place, length in zip((2, 4, 3), lengths):
            for rows in (cache._keys, cache._values):
                found += [layer[place, : length - 1].clone() for layer in rows]
                assert all(layer[place, length - 1 : 127].isinf().all() for layer in rows)
        assert step == 3 and all(x.isfinite().all() for x in found)
        seen[kernel] = found
    torch.testing.assert_close(seen[True], seen[False], atol=1e-4, rtol=1e-4)
"""


@pytest.mark.parametrize("program", [INTERPRETED, IN_A_MODEL])
def test_interpreted_kernel_matches_torch(program):
    assert_interpreted(program)


def test_no_kernel_on_a_cpu():
    assert not has_chunk_kernel(torch.device("cpu"), torch.bfloat16, 3, 3, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heads", [(3, 3, 64), (2, 6, 128), (2, 7, 64), (2, 1, 128)])
def test_kernel_on_a_gpu(heads):
    pytest.importorskip("triton")
    assert has_chunk_kernel(torch.device("cuda"), torch.bfloat16, *heads)
    assert not has_chunk_kernel(torch.device("cuda"), torch.float32, *heads)


def test_chunk_sizes_fill_the_device():
    assert [chunk_sizes(width) for width in (64, 48, 192, 256)] == [(192, 448), (208, 464), (64, 320), (256, 512)]
    for width in range(1, 600):
        few, many = chunk_sizes(width)
        assert (
            48 <= few < many
            and few % BLOCK_TOKENS == many % BLOCK_TOKENS == 0
            and (width + many) <= -(-(width + few) // 256) * 256 + 256
        )


@pytest.mark.parametrize("sizes", [(32,), (48, 112), (16, 64)])
def test_schedule_covers_every_token_but_the_last_once_in_order(sizes):
    rng, readings, prompts = np.random.default_rng(0), ChunkedPrefill(), {}
    read: dict[int, list[int]] = {}
    ready, now = set(), 0
    for turn in range(60):
        if turn % 7 == 0 and turn < 40:
            new = [rng.integers(0, 256, rng.integers(1, 120)) for _ in range(rng.integers(1, 5))]
            readings.add(np.arange(now, now + len(new)), new)
            prompts |= dict(enumerate(new, now))
            now += len(new)
        left = len(readings)
        look = readings.schedule(3, sizes, max_steps=12)
        if look is None:
            assert left == 0
            continue
        assert look.size == next((size for size in sizes if left <= 12 * size), sizes[-1]) and len(look.packed_KX) <= 3
        for packed_X in look.packed_KX:
            tokens_C, positions_C, described = np.split(packed_X, (look.size, 2 * look.size))
            before = {place: len(tokens) for place, tokens in read.items()}
            for number, (place, cached, begin, count) in enumerate(described.reshape(-1, 4)):
                own = number * BLOCK_TOKENS
                assert not tokens_C[own + count : own + BLOCK_TOKENS].any() and 0 <= count <= BLOCK_TOKENS
                if count:
                    so_far = read.setdefault(place, [])
                    assert cached == before.get(place, 0) and cached + own - begin == len(so_far)
                    assert positions_C[own : own + count].tolist() == list(range(len(so_far), len(so_far) + count))
                    so_far += tokens_C[own : own + count].tolist()
        for place, token, position in zip(
            look.completed.slots_N, look.completed.tokens_N, look.completed.positions_N, strict=True
        ):
            prompt = prompts[place]
            assert (token, position) == (prompt[-1], len(prompt) - 1) and read.get(place, []) == prompt[:-1].tolist()
            ready.add(place)
    assert ready == set(prompts) and len(prompts) > 10 and not readings.is_active


def test_each_prompt_starts_a_new_block():
    readings = ChunkedPrefill()
    readings.add(np.array([5, 1]), [np.arange(20), np.arange(10)])
    look = readings.schedule(4, (64,), 4)
    assert look is not None and look.completed.slots_N.tolist() == [5, 1] and len(look.packed_KX) == 1
    assert look.packed_KX[0, 128:].reshape(-1, 4).tolist() == [[5, 0, 0, 16], [5, 0, 0, 3], [1, 0, 32, 9], [0, 0, 0, 0]]


@pytest.mark.parametrize("family", ["llama", "llama-untied-bias", "llama3-rope", "qwen2", "qwen3", "adapted"])
def test_chunked_prefill_leaves_a_prefills_cache_and_changes_no_slot(family):
    """Two slots decode meanwhile and do not change; what may not be read is NaN."""
    torch.manual_seed(0)
    model = with_adapter(make_model("llama")) if family == "adapted" else make_model(family)
    forward, device, rng = LlamaForward(model), torch.device("cpu"), np.random.default_rng(0)
    prompts = [rng.integers(0, 256, length) for length in (7, 90, 50, 33)]
    mixed, alone = KeyValueCache(forward.shape), KeyValueCache(forward.shape)
    for cache in (mixed, alone):
        cache.resize(6, 128)
    readings, room, step = ChunkedPrefill(), ChunkBuffer(64, 1, device), 0
    for layer in (*mixed._keys, *mixed._values):
        layer[2:] = float("nan")
    readings.add(np.arange(2, 6), prompts)
    with torch.inference_mode():
        while (look := readings.schedule(1, (64,), 1)) is not None:
            room.fill(look.packed_KX)
            rows = torch.tensor([3, 4]) + step, torch.tensor([0, 9]) + step
            found = forward.decode_step(*rows, mixed, 64, room.select(torch.tensor([0])))
            torch.testing.assert_close(found, forward.decode_step(*rows, alone, 64), atol=1e-5, rtol=1e-4)
            step += 1
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        forward.prefill_varlen(PackedPrompts.pack(prompts, device), None, lambda _, k, v: kept.append((k, v)))
    starts = np.cumsum([0, *map(len, prompts)])
    for layer, new in enumerate(kept):
        for cached, expected in zip((mixed._keys[layer], mixed._values[layer]), new, strict=True):
            for place, (start, prompt) in enumerate(zip(starts, prompts, strict=False), 2):
                read = len(prompt) - 1
                torch.testing.assert_close(cached[place, :read], expected[start : start + read], atol=1e-5, rtol=1e-4)
                assert cached[place, read:].isnan().all()
    assert step == 4
