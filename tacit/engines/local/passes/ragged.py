"""The flat pass on a GPU: what lies between two matrix products is one launch, and attention runs over rows of any length.

It computes what `LeanDecoder` does, which is what the model itself does; on a CPU that one is quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tacit.engines.local.passes.flat import Attention, FlatPack
from tacit.engines.local.passes.handing import handed
from tacit.engines.local.passes.joint import joint
from tacit.engines.local.passes.lean import LeanDecoder
from tacit.engines.local.passes.pieces import COMPILED, PLAIN, WORTH_COMPILING, Pieces, can_compile
from tacit.engines.local.passes.ragged_attention import attend, has_flash
from tacit.engines.local.passes.regions import WORTH_A_REGION, Regions
from tacit.engines.local.passes.spans import Spans


class RaggedDecoder(LeanDecoder):
    @staticmethod
    def suits(hf: Any) -> bool:
        """Whether this machine has the kernels for such a model."""
        weight, attention = hf.model.embed_tokens.weight, hf.model.layers[0].self_attn
        return has_flash(weight.device, weight.dtype, int(attention.head_dim))

    def __init__(self, hf: Any, regions: bool = False):
        """`regions`: where there is a compiler, what lies between two attentions is compiled as one."""
        super().__init__(hf)
        self.device: torch.device = hf.model.embed_tokens.weight.device
        self._compiles = can_compile(self.device)
        self._regions = Regions(self.layers, self.head_dim) if regions and self._compiles else None

    def __call__(self, pack: FlatPack) -> torch.Tensor:
        hidden_ND, normed_ND, rotation_N = self._below(pack, len(self.layers) - 1)
        pieces, top, predicts_T = self._pieces(pack), self.layers[-1], handed(pack.predicts_T, self.device)
        rotation_T = tuple(part.index_select(0, predicts_T) for part in rotation_N)
        (q,) = self._heads(normed_ND.index_select(0, predicts_T), top.self_attn.q_proj)
        k, v = self._heads(normed_ND, top.self_attn.k_proj, top.self_attn.v_proj)
        q, k = self._rotated(pieces, top, "q_norm", q, rotation_T), self._rotated(pieces, top, "k_norm", k, rotation_N)
        attended_TF = _Rows(pack.top, self.device).attend(q, k, v, self.scale)
        hidden_TD, normed_TD = self._after_attention(pieces, top, hidden_ND.index_select(0, predicts_T), attended_TF)
        return self._fed_forward(pieces, top, hidden_TD, normed_TD, self.body.norm)[1]

    def states(self, pack: FlatPack, layers: Sequence[int]) -> dict[int, torch.Tensor]:
        """[N, D] states of every token after each of these layers: 0 is the embeddings, the last is after the final norm."""
        found: dict[int, torch.Tensor] = {}
        _, normed_ND, _ = self._below(pack, max(layers), found)
        return found | ({len(self.layers): normed_ND} if len(self.layers) in layers else {})

    def _below(
        self, pack: FlatPack, depth: int, found: dict[int, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """The first `depth` layers: their states, these as the next layer (or the head) reads them, and the rotation. All
        states are left in `found`, where they are asked for."""
        pieces = self._pieces(pack)
        hidden_ND = self.body.embed_tokens(handed(pack.tokens_N, self.device))
        rotation_N = self._angles(handed(pack.positions_N, self.device))
        inner = [_Rows(attention, self.device) for attention in pack.inner]
        norms = [*(layer.input_layernorm for layer in self.layers), self.body.norm]
        normed_ND = pieces.normed(hidden_ND, norms[0].weight, norms[0].variance_epsilon)
        small = pack.computed < WORTH_A_REGION
        regions = None if self._regions is None or small else self._regions.of_pass(depth - 1)
        for i, layer in enumerate(self.layers[:depth]):
            if found is not None:
                found[i] = hidden_ND
            if i == 0 or regions is None:
                q, k, v = self._asked(pieces, layer, normed_ND, rotation_N)
            asking = q.split([rows.queries for rows in inner])
            attended = [rows.attend(part, k, v, self.scale) for rows, part in zip(inner, asking, strict=True)]
            attended_NF = attended[0] if len(attended) == 1 else torch.cat(attended)
            if regions is not None and i < depth - 1:
                hidden_ND, q, k, v = regions(i, hidden_ND, attended_NF, *rotation_N)
                continue
            hidden_ND, normed_ND = self._after_attention(pieces, layer, hidden_ND, attended_NF)
            hidden_ND, normed_ND = self._fed_forward(pieces, layer, hidden_ND, normed_ND, norms[i + 1])
        if found is not None:
            found[depth] = hidden_ND
        return hidden_ND, normed_ND, rotation_N

    def _pieces(self, pack: FlatPack) -> Pieces:
        return COMPILED if self._compiles and pack.computed >= WORTH_COMPILING else PLAIN

    def _asked(
        self, pieces: Pieces, layer: Any, normed: torch.Tensor, rotation: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A layer's queries, keys and values, rotated."""
        modules = [getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")]
        if not self.has_qk_norm:
            (cos, sin), sizes = rotation, [module.out_features // self.head_dim for module in modules]
            q, k, v = pieces.by_head(joint(normed, *modules), cos, sin, sizes[0], sizes[1])
            return q, k, v
        q, k, v = self._heads(normed, *modules)
        q, k = (self._rotated(pieces, layer, n, x, rotation) for n, x in (("q_norm", q), ("k_norm", k)))
        return q, k, v

    def _heads(self, x: torch.Tensor, *modules: Any) -> list[torch.Tensor]:
        """[N, heads, head_dim] of each projection."""
        sizes = [module.out_features for module in modules]
        return [y.unflatten(-1, (-1, self.head_dim)) for y in joint(x, *modules).split(sizes, dim=-1)]

    def _rotated(
        self, pieces: Pieces, layer: Any, norm: str, x: torch.Tensor, rotation: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        if self.has_qk_norm:
            module = getattr(layer.self_attn, norm)
            x = pieces.normed(x, module.weight, module.variance_epsilon)
        return pieces.rotated(x, *rotation)

    def _after_attention(
        self, pieces: Pieces, layer: Any, hidden: torch.Tensor, attended: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        norm = layer.post_attention_layernorm
        return pieces.added(hidden, joint(attended, layer.self_attn.o_proj), norm.weight, norm.variance_epsilon)

    def _fed_forward(
        self, pieces: Pieces, layer: Any, hidden: torch.Tensor, normed: torch.Tensor, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = pieces.gated(joint(normed, layer.mlp.gate_proj, layer.mlp.up_proj))
        return pieces.added(hidden, joint(x, layer.mlp.down_proj), norm.weight, norm.variance_epsilon)

    def _angles(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [N, 1, head_dim / 2] each, from the model's own rotary module."""
        cos, sin = self.body.rotary_emb(torch.zeros(1, device=positions_N.device), positions_N[None])
        half = self.head_dim // 2
        return cos[0, :, None, :half].float().contiguous(), sin[0, :, None, :half].float().contiguous()


class _Rows:
    """One attention of a pack, on the device: its rows, and the tokens that are their keys."""

    def __init__(self, attention: Attention, device: torch.device):
        self.queries = int(attention.query_lengths.sum())
        self._spans = Spans.of(attention.query_lengths, attention.key_lengths, device)
        keys = attention.ragged_keys
        self._first, in_order = len(keys), np.array_equal(keys, np.arange(len(keys)))
        self._keys = None if in_order else handed(keys, device)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """[queries, heads · head_dim]"""
        if self._keys is not None:
            k, v = k.index_select(0, self._keys), v.index_select(0, self._keys)
        elif self._first < len(k):
            k, v = k[: self._first], v[: self._first]
        return attend(q, k, v, self._spans, scale).flatten(1)
