"""Programmatic dependent launches: a kernel waits for the previous one before it touches memory."""

from __future__ import annotations

import pytest
import torch
from interpreted import assert_compiled
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tacit.core.protocols import Sampling
from tacit.engines.local.fast import attention, kernels, layers, lora_step
from tacit.engines.local.fast.kernels import pdl_options
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.sampling import sample_tokens

# Cross-compiled for Hopper, without a GPU. In PTX the first basic block comes first.
COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tacit.engines.local.fast import triton_kernels

TYPES = {"positions": "*i64"}
TYPES |= {name: "*fp32" for name in ("rotations", "split_sums", "split_stats")}
TYPES |= {name: "fp32" for name in ("scale", "epsilon")}
INTEGERS = ("q_row", "k_row", "v_row", "capacity", "rows", "count", "inner", "stride")
TYPES |= dict.fromkeys(INTEGERS, "i32")
SHAPE = {"KV": 2, "GROUP": 6, "DIM": 128}
KERNELS = [
    (triton_kernels.decode_attention_kernel, SHAPE | {"PADDED": 16, "BLOCK": 64, "SPLITS": 2}),
    (triton_kernels.merge_splits_kernel, SHAPE | {"PADDED": 16, "SPLITS": 2}),
    (triton_kernels.rms_norm_kernel, {"WIDTH": 1536, "PADDED": 2048}),
    (triton_kernels.swiglu_forward_kernel, {"BLOCK": 1024}),
    (triton_kernels.lora_add_rms_norm_kernel, {"WIDTH": 1536, "RANK": 16, "PADDED": 16, "BLOCK": 2048}),
    (triton_kernels.lora_swiglu_kernel, {"INNER": 8960, "RANK": 32, "PADDED": 32, "ROWS": 16, "BLOCK": 64}),
]
READS = re.compile(r"ld\\.global|cp\\.async|ld\\.volatile")
WRITES = re.compile(r"st\\.global|atom\\.|red\\.global")
for kernel, sizes in KERNELS:
    for uses_pdl in (True, False):
        fixed = sizes | {"USE_PDL": uses_pdl}
        signature = {name: "constexpr" if name in fixed else TYPES.get(name, "*bf16") for name in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=aligned)
        options = {"num_stages": 3, "launch_pdl": uses_pdl}
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        before, *after = re.split(r"griddepcontrol\\.wait", ptx)
        assert len(after) == uses_pdl, (kernel, len(after))
        if not uses_pdl:
            continue
        assert "griddepcontrol.launch_dependents" in after[0], kernel
        assert READS.search(after[0]) and WRITES.search(after[0]) and not WRITES.search(before), kernel
        constants = "lora" in kernel.__name__  # these read B before they wait
        assert bool(READS.search(before)) == constants, kernel
"""


def test_kernels_wait_before_memory_access() -> None:
    assert_compiled(COMPILED)


@pytest.fixture
def clear_cache():
    pdl_options.cache_clear()
    yield
    pdl_options.cache_clear()


@pytest.mark.parametrize(
    ("capability", "driver", "hip", "has"),
    [
        ((8, 0), 13000, None, False),
        ((9, 0), 13000, None, True),
        ((9, 0), 12020, None, False),
        ((12, 0), 12080, None, True),
        ((9, 4), 13000, "6.4", False),  # an AMD GPU
    ],
)
def test_dependent_launches_need_a_new_device_and_driver(monkeypatch, clear_cache, capability, driver, hip, has) -> None:
    pytest.importorskip("triton.language.extra.cuda.gdc")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: driver, raising=False)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert pdl_options(torch.device("cuda")) == ({"USE_PDL": True, "launch_pdl": True} if has else {"USE_PDL": False})


def test_no_dependent_launches_on_a_cpu() -> None:
    assert pdl_options(torch.device("cpu")) == {"USE_PDL": False}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rank", [0, 8])
@torch.inference_mode()
def test_dependent_launches_and_graphs_give_the_same_bits(monkeypatch, rank) -> None:
    """Forty steps, each continuing from the previous one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = LlamaConfig(**sizes, vocab_size=5000, num_hidden_layers=4, initializer_range=0.1, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)).eval()
        model = model.get_base_model()
    forward, rows, steps = LlamaForward(model.to("cuda", torch.bfloat16)), 48, 40
    forward.extend_rope(256)
    noise_BK = torch.rand(rows, steps, generator=torch.Generator().manual_seed(1)).cuda()

    def run(recorded: bool) -> list[torch.Tensor]:
        cache = KeyValueCache(forward.shape)
        cache.resize(rows, 256)
        tokens_BK, logprobs_BK = torch.zeros(rows, steps, dtype=torch.long, device="cuda"), torch.zeros(rows, steps).cuda()
        drawn_B, last_B, positions_B = (torch.zeros(rows, dtype=torch.long, device="cuda") for _ in range(3))

        def step() -> None:
            logits = forward.decode_step(last_B, positions_B, cache, 256)
            tokens_B, logprobs_B = sample_tokens(logits, noise_BK.index_select(1, drawn_B[:1])[:, 0], Sampling())
            tokens_BK.index_copy_(1, drawn_B[:1], tokens_B[:, None])
            logprobs_BK.index_copy_(1, drawn_B[:1], logprobs_B[:, None])
            last_B.copy_(tokens_B)
            drawn_B.add_(1)
            positions_B.add_(1)

        step()
        if recorded:
            for state in (drawn_B, last_B, positions_B, tokens_BK, logprobs_BK):
                state.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            again, left = graph.replay, steps
        else:
            again, left = step, steps - 1
        for _ in range(left):
            again()
        torch.cuda.synchronize()
        return [tokens_BK, logprobs_BK, *cache.keys, *cache.values]

    found = {(True, recorded): run(recorded) for recorded in (False, True)}
    launching = (lora_step, attention, layers, kernels)
    for module in launching:
        monkeypatch.setattr(module, "pdl_options", lambda device: {"USE_PDL": False})
    found |= {(False, recorded): run(recorded) for recorded in (False, True)}
    assert found[False, False][0].float().std() > 100, "the sampled tokens must vary"
    for key, others in found.items():
        assert all(torch.equal(x, y) for x, y in zip(found[False, False], others, strict=True)), key
