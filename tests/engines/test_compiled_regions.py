"""Compiled regions between two attentions: same outputs and gradients, one graph, eager fallback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_packed_decoder import build, grouped_rows
from torch._dynamo.utils import counters

from tacit.core.credit import Batch
from tacit.engines.local import update
from tacit.engines.local.fast import packed
from tacit.engines.local.fast.packed import VarlenDecoder
from tacit.engines.local.packing import PackedBatch, make_packed_batch
from tacit.engines.local.update import measure_activation_bytes
from tacit.losses.surrogates import Imitation

FAMILIES = {"Llama": {}, "Llama, tied": {"tie_word_embeddings": True}, "Qwen2": {}, "Qwen3": {"head_dim": 16}}
ADAPTED = {
    "everything": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "some": ("q_proj", "v_proj", "down_proj"),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Compiled on a CPU too and for few tokens, by what makes graphs of them but writes no code: a compiler takes its time."""
    compile_it = torch.compile
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_it(f, backend="aot_eager"))
    monkeypatch.setattr(packed, "can_compile", lambda device: True)
    monkeypatch.setattr(packed, "MIN_TOKENS_FOR_REGIONS", 2)
    monkeypatch.setattr(VarlenDecoder, "can_run", staticmethod(lambda hf: True))
    yield
    torch._dynamo.reset()


def model_of(family: str, adapted: tuple[str, ...] = (), dtype: torch.dtype = torch.float32):
    hf = build(family.split(",")[0], num_hidden_layers=5, **FAMILIES[family])
    torch.manual_seed(1)
    for name, parameter in hf.named_parameters():  # biases and norms start trivial: make them matter
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    if adapted:
        import peft

        peft.get_peft_model(hf, peft.LoraConfig(r=3, lora_alpha=5, target_modules=list(adapted), init_lora_weights=False))
    return hf.to(dtype)


def computed(decoder: VarlenDecoder, hf, pack: PackedBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """States and gradients of one pass."""
    hidden_TD = decoder(pack)
    weights_TD = torch.randn(hidden_TD.shape, generator=torch.Generator().manual_seed(2)).to(hidden_TD.dtype)
    (hidden_TD * weights_TD).sum().backward()
    gradients = {n: p.grad for n, p in hf.named_parameters() if p.grad is not None}
    hf.zero_grad()
    return hidden_TD.detach(), gradients


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def packs() -> list[PackedBatch]:
    """Shared prompts and not, of different sizes."""
    return [make_packed_batch(*grouped_rows(), np.array(kept)) for kept in (range(7), [1, 4], [0, 3, 6], [5, 2])]


@pytest.mark.parametrize("adapted", ["", *ADAPTED])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_are_those_of_pieces_and_one_graph_has_them(family: str, adapted: str) -> None:
    hf = model_of(family, ADAPTED.get(adapted, ()))
    pieces, compiled = VarlenDecoder(hf), VarlenDecoder(hf, regions=True)
    for pack in packs():
        (states, gradients), (expected, expected_gradients) = (computed(decoder, hf, pack) for decoder in (compiled, pieces))
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
        assert gradients.keys() == expected_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, expected_gradients[name], atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert graphs() == 1
    with torch.no_grad():
        for pack in packs():
            torch.testing.assert_close(compiled(pack), pieces(pack), atol=1e-5, rtol=1e-5)
            for layer, states_ND in compiled.states(pack, [0, 1, 3, 5]).items():
                torch.testing.assert_close(states_ND, pieces.states(pack, [layer])[layer], atol=1e-5, rtol=1e-5)
    assert graphs() == 2


@pytest.mark.parametrize("adapted", ["", "everything"])
def test_in_bfloat16_they_differ_by_rounding(adapted: str) -> None:
    hf = model_of("Qwen2", ADAPTED.get(adapted, ()), torch.bfloat16)
    exact = model_of("Qwen2", ADAPTED.get(adapted, ()))
    exact.load_state_dict(hf.state_dict())
    for pack in packs():
        found = [computed(VarlenDecoder(m, regions=r), m, pack) for m, r in ((hf, True), (hf, False), (exact, False))]
        for pick in (lambda x: [x[0]], lambda x: list(x[1].values())):
            ours, theirs, true = (torch.cat([t.float().flatten() for t in pick(x)]) for x in found)
            assert (ours - true).norm() < 1.3 * (theirs - true).norm()
    assert graphs() == 1


def test_a_policy_plans_and_learns_with_them_as_without(own_cache, texts, rows, monkeypatch) -> None:
    """What autograd keeps of the trial is left out of the count, and there is no graph more for being counted."""
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.settings import EngineSettings
    from tacit.engines.models.tiny import TinySettings

    monkeypatch.setattr(update, "PROBE_TOKENS", 30)
    deep = TinySettings(hidden=32, layers=4, heads=2, kv_heads=1, intermediate=64, context=256)
    batch, moved, kept = Batch.imitation(*rows), [], []
    for compiled in (True, False):
        settings = EngineSettings(device="cpu", threads=1, token_budget=60, compile=compiled, lora_rank=2)
        policy = load_policy("tiny", settings, 0, texts, deep)
        assert (policy.engine.model.varlen_decoder._regions is not None) == compiled
        learning = policy.engine.make_updater("default")
        counted = [measure_activation_bytes(learning, batch, [Imitation()], np.array([0, 1, 2, 3, 5, 6, 7])) for _ in range(2)]
        assert counted[0] == counted[1]
        kept.append(counted[0][1])
        policy.update(batch, [Imitation()], 1e-2)
        moved.append(policy.logprobs(*rows))
    assert graphs() == 2
    assert kept[0] <= kept[1]
    for ours, theirs in zip(*moved, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_module_that_drops_out_keeps_its_own_way() -> None:
    import peft

    hf = build("Llama", num_hidden_layers=4)
    peft.get_peft_model(hf, peft.LoraConfig(r=3, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False))
    compiled = VarlenDecoder(hf.eval(), regions=True)
    assert compiled._regions.bind_weights(2) is not None
    hf.model.layers[2].self_attn.q_proj.train()
    assert compiled._regions.bind_weights(2) is None
    states = []
    for decoder in (compiled, VarlenDecoder(hf)):
        torch.manual_seed(3)
        states.append(decoder(packs()[0]))
    assert torch.equal(*states) and graphs() == 0


@pytest.mark.parametrize("when", ["compiled", "differentiated", "wrong"])
def test_where_compiling_fails_the_model_runs_without(monkeypatch, when: str) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no C compiler found\nand much more")

    def made(piece, **options):
        def answer(*arguments):
            if when == "compiled":
                refuse()
            h, q, k, v = piece(*arguments)
            if when == "differentiated":
                q.register_hook(refuse)
            return h, q, k, v * 1.5 if when == "wrong" else v

        return answer

    monkeypatch.setattr(torch, "compile", made)
    hf = model_of("Llama")
    compiled = VarlenDecoder(hf, regions=True)
    words = "differs from the eager one" if when == "wrong" else "more slowly: no C compiler found$"
    with pytest.warns(UserWarning, match=words):
        states, gradients = computed(compiled, hf, packs()[0])
    expected, expected_gradients = computed(VarlenDecoder(hf), hf, packs()[0])
    torch.testing.assert_close(states, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], atol=1e-4, rtol=1e-4)
    assert compiled._regions.bind_weights(3) is None
