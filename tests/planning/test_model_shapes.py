"""Model shapes: published weight counts, and rejected configurations."""

from __future__ import annotations

import json

import pytest

from tacit.core.errors import TacitError
from tacit.engines.models.bases import base_path
from tacit.planning.shapes import SIZES, shape_in, shape_of_config, shape_of_size

PUBLISHED = {"135M": 134.5e6, "0.5B": 0.494e9, "1.5B": 1.54e9, "3B": 3.09e9, "4B": 4.02e9, "7B": 7.61e9, "8B": 8.03e9,
             "14B": 14.8e9, "32B": 32.8e9, "70B": 70.6e9, "405B": 405.9e9}  # fmt: skip
"""weight counts on the model cards"""


@pytest.mark.parametrize("size", SIZES)
def test_weight_counts_match_the_publication(size):
    assert SIZES[size].weights == pytest.approx(PUBLISHED[size], rel=0.005)


def test_weight_count_equals_the_checkpoint_file():
    from safetensors import safe_open

    place = base_path("tiny-base")
    with safe_open(place / "model.safetensors", "np") as file:
        stored = sum(_numbers(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    assert shape_in(place).weights == stored


def _numbers(shape):
    product = 1
    for length in shape:
        product *= length
    return product


@pytest.mark.parametrize(("text", "weights"), [("360M", 360e6), ("1T", 1e12), ("20B", 20e9)])
def test_unlisted_sizes_scale_the_nearest_shape(text, weights):
    assert shape_of_size(text).weights == pytest.approx(weights, rel=0.06)


def test_lora_weight_count_by_hand():
    shape = SIZES["135M"]  # q and o: 576 + 576; k and v: 576 + 192; gate, up, down: 576 + 1,536
    assert shape.lora_weights(8) == 30 * 8 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))


def test_shape_of_size_returns_none_for_other_names():
    assert shape_of_size("tiny-base") is None and shape_of_size("8") is None


def test_unsupported_or_damaged_configs_are_rejected(tmp_path):
    with pytest.raises(TacitError, match="mixture of 128 experts"):
        shape_of_config({"num_experts": 128}, "moe")
    with pytest.raises(TacitError, match="has no 'hidden_size'"):
        shape_of_config({"num_attention_heads": 4}, "odd")
    (tmp_path / "config.json").write_text(json.dumps({"n_head": 4})[:-1])
    with pytest.raises(TacitError, match="cannot read"):
        shape_in(tmp_path)
