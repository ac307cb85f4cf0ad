"""The local policy: adapters, references, checkpoints and error messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.types import HiddenState
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.tokenizer import TextCodec

SETTINGS = [
    {},
    {"lora_rank": 4, "lora_dropout": 0.1},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "lora_rank": 4},
    {"value_head": True},
]


class Imitate:
    """Raises every log-probability, and moves the value head (if any) towards one."""

    def __init__(self, *needs: str):
        self.needs = frozenset(needs)

    def __call__(self, view):
        loss = -view.logprobs_T.sum() / view.total_tokens
        if "values" in self.needs:
            loss = loss + ((view.values_R - 1) ** 2).sum() / view.total_rows
        if "reference" in self.needs:
            loss = loss + (view.logprobs_T - view.tokens["reference"]).sum() / view.total_tokens
        return loss, {}


def train(policy, rows, steps: int) -> None:
    needs = ("values",) if policy.engine.settings.value_head else ()
    for _ in range(steps):
        policy.update(Batch.imitation(*rows), [Imitate(*needs)], 1e-2)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}])
def test_sampler_and_scorer_match_a_plain_pass_before_and_after_updates(make_policy, rows, settings) -> None:
    policy = make_policy(**settings)
    assert isinstance(policy, Policy)
    prompts = rows[0]
    for _ in range(2):
        done = policy.sample([Request(p, seed=i) for i, p in enumerate(prompts)], Sampling(max_tokens=9), hidden=HiddenState(1))
        scored = policy.logprobs(prompts, [c.tokens for c in done])
        for prompt, completion, found in zip(prompts, done, scored, strict=True):
            ids = torch.from_numpy(np.concatenate([prompt, completion.tokens]))[None]
            with torch.no_grad():
                logps = torch.log_softmax(policy.engine.model.hf(input_ids=ids).logits[0, len(prompt) - 1 : -1], -1)
            plain = logps[torch.arange(len(completion.tokens)), torch.from_numpy(completion.tokens)].numpy()
            np.testing.assert_allclose(completion.logprobs, found, atol=1e-4)
            np.testing.assert_allclose(completion.logprobs, plain, atol=1e-4)
        np.testing.assert_allclose(np.stack([c.hidden for c in done]), policy.hidden_states(prompts, 1), atol=1e-4)
        train(policy, rows, 2)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("settings", SETTINGS)
def test_loaded_policy_continues_bit_for_bit(make_policy, rows, tmp_path: Path, settings) -> None:
    whole = make_policy(**settings)
    whole.freeze_reference()
    train(whole, rows, 3)
    first = make_policy(**settings)
    first.freeze_reference()
    train(first, rows, 1)
    first.save(tmp_path)
    loaded = make_policy(seed=0, **settings)
    loaded.load(tmp_path)
    assert loaded.digest() == first.digest() != whole.digest()
    assert same(loaded.reference().logprobs(*rows), whole.reference().logprobs(*rows))
    train(loaded, rows, 2)
    assert loaded.digest() == whole.digest()
    assert same(loaded.logprobs(*rows), whole.logprobs(*rows))
    if settings.get("value_head"):
        assert (loaded.values(rows[0]) == whole.values(rows[0])).all() and whole.values(rows[0]).any()


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"lora_rank": 4}])
def test_weights_can_be_saved_without_the_optimizer(make_policy, rows, tmp_path: Path, settings) -> None:
    policy = make_policy(**settings)
    train(policy, rows, 2)
    policy.save(tmp_path, optimizer=False)
    loaded = make_policy(**settings)
    loaded.load(tmp_path)
    assert same(loaded.logprobs(*rows), policy.logprobs(*rows))
    assert not any(key.startswith("exp_avg") for key in _keys(tmp_path / "training" / "default.safetensors"))


def _keys(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def test_saved_model_can_be_loaded_as_a_checkpoint(make_policy, rows, tmp_path: Path) -> None:
    policy = make_policy()
    train(policy, rows, 1)
    policy.save(tmp_path)
    assert same(load_policy(str(tmp_path), EngineSettings(device="cpu")).logprobs(*rows), policy.logprobs(*rows))


def test_saved_adapter_can_be_loaded_with_peft(make_policy, rows, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = make_policy(lora_rank=4)
    train(policy.adapter("extractor"), rows, 1)
    policy.save(tmp_path)
    opened = PeftModel.from_pretrained(make_policy().engine.model.hf, tmp_path / "adapters" / "extractor").eval()
    found = policy.adapter("extractor").logprobs(rows[0][:1], rows[1][:1])[0]
    ids = torch.from_numpy(np.concatenate([rows[0][0], rows[1][0]]))[None]
    with torch.no_grad():
        logps = torch.log_softmax(opened(input_ids=ids).logits[0, len(rows[0][0]) - 1 : -1], -1)
    np.testing.assert_allclose(found, logps[torch.arange(len(found)), torch.from_numpy(rows[1][0])], atol=1e-5)


def test_adapters_share_only_the_base_model(make_policy, rows) -> None:
    policy = make_policy(lora_rank=4)
    untouched = policy.logprobs(*rows)
    extractor = policy.adapter("extractor")
    before = extractor.digest()
    train(policy, rows, 2)
    assert extractor.digest() == before and same(extractor.logprobs(*rows), untouched)
    trained = policy.logprobs(*rows)
    train(extractor, rows, 3)
    assert same(policy.logprobs(*rows), trained) and not same(extractor.logprobs(*rows), trained)
    assert extractor.engine is policy.engine and policy.adapter("extractor").digest() == extractor.digest()
    done = policy.sample([Request(rows[0][1])], Sampling(max_tokens=5))[0]
    np.testing.assert_allclose(done.logprobs, policy.logprobs([rows[0][1]], [done.tokens])[0], atol=1e-4)
    same_again = make_policy(lora_rank=4)
    train(same_again.adapter("extractor"), rows, 3)
    assert same_again.adapter("extractor").digest() == extractor.digest(), "an adapter must not depend on other adapters"


def test_all_adapters_are_saved_and_loaded(make_policy, rows, tmp_path: Path) -> None:
    policy = make_policy(lora_rank=4)
    train(policy, rows, 1)
    train(policy.adapter("extractor"), rows, 2)
    policy.adapter("extractor").save(tmp_path)
    loaded = make_policy(lora_rank=4)
    loaded.load(tmp_path)
    assert loaded.digest() == policy.digest()
    assert loaded.adapter("extractor").digest() == policy.adapter("extractor").digest() != policy.digest()


def test_adapters_need_lora_and_a_valid_name(make_policy) -> None:
    with pytest.raises(TacitError, match="lora-rank"):
        make_policy().adapter("extractor")
    with pytest.raises(TacitError, match="letters, digits"):
        make_policy(lora_rank=4).adapter("a.b")
    with pytest.raises(TacitError, match="reserved"):
        make_policy(lora_rank=4).adapter("a--frozen")


def test_reference_of_an_adapter_is_the_base_until_frozen(make_policy, rows) -> None:
    policy = make_policy(lora_rank=4)
    start = policy.logprobs(*rows)
    train(policy, rows, 2)
    assert same(policy.reference().logprobs(*rows), start)
    policy.freeze_reference()
    frozen = policy.logprobs(*rows)
    assert same(policy.reference().logprobs(*rows), frozen)
    train(policy, rows, 2)
    assert same(policy.reference().logprobs(*rows), frozen) and not same(policy.logprobs(*rows), frozen)
    policy.freeze_reference()
    assert same(policy.reference().logprobs(*rows), policy.logprobs(*rows))


def test_reference_of_all_parameters_must_be_frozen_first(make_policy, rows) -> None:
    policy = make_policy()
    with pytest.raises(TacitError, match="freeze_reference"):
        policy.reference()
    policy.freeze_reference()
    frozen = policy.logprobs(*rows)
    train(policy, rows, 2)
    assert same(policy.reference().logprobs(*rows), frozen) and not same(policy.logprobs(*rows), frozen)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}])
def test_every_damaged_file_is_named(make_policy, rows, tmp_path: Path, settings) -> None:
    policy = make_policy(**settings)
    policy.freeze_reference()
    train(policy, rows, 1)
    policy.save(tmp_path / "good")
    files = [f for f in (tmp_path / "good").rglob("*") if f.suffix == ".safetensors" or f.name == "policy.json"]
    assert len(files) == 4
    for file in files:
        whole = file.read_bytes()
        for broken in (whole[: len(whole) // 2], b"", None):
            file.unlink() if broken is None else file.write_bytes(broken)
            with pytest.raises(TacitError, match=file.name):
                make_policy(**settings).load(tmp_path / "good")
        file.write_bytes(whole)
    weights = next(f for f in files if f.parent.name in ("model", "default") and f.suffix == ".safetensors")
    flipped = bytearray(weights.read_bytes())
    flipped[-5] ^= 1
    weights.write_bytes(flipped)
    with pytest.raises(TacitError, match="digest"):
        make_policy(**settings).load(tmp_path / "good")


def test_checkpoint_with_other_settings_is_refused(make_policy, tmp_path: Path) -> None:
    make_policy().save(tmp_path / "full")
    make_policy(lora_rank=4).save(tmp_path / "lora")
    with pytest.raises(TacitError, match="lora_rank"):
        make_policy(lora_rank=4).load(tmp_path / "full")
    with pytest.raises(TacitError, match="does not fit"):
        make_policy(lora_rank=8).load(tmp_path / "lora")
    with pytest.raises(TacitError, match="does not fit"):
        make_policy(dtype="bfloat16").load(tmp_path / "full")
    with pytest.raises(TacitError, match="LoRA adapters"):
        load_policy(str(tmp_path / "lora"))


def test_unwritable_checkpoint_path_is_reported(make_policy, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TacitError, match="cannot write the checkpoint"):
        make_policy().save(tmp_path / "file")


def test_missing_models_are_refused_with_the_remedy(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(TacitError, match="Did you mean 'tiny-4m'"):
        load_policy("tyny-4m")
    with pytest.raises(TacitError, match="does not exist"):
        load_policy(str(tmp_path / "nowhere"))
    with pytest.raises(TacitError, match=r"has no config\.json"):
        load_policy(str(tmp_path))
    with pytest.raises(TacitError, match="but there are none"):
        load_policy("tiny")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TacitError, match="cannot load model"):
        load_policy(str(tmp_path))


def test_unreachable_hub_is_reported_after_one_request(monkeypatch) -> None:
    import huggingface_hub
    import transformers

    calls = []

    def fail(*_, **options):
        calls.append(options)
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # read from the environment when it is imported
    monkeypatch.setattr(huggingface_hub.utils, "get_session", lambda: SimpleNamespace(head=fail))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(TacitError, match=r"'someone/model'.*does not answer \(OSError: Name .*path of a downloaded checkpoint"):
        load_policy("someone/model")
    assert calls == [{"timeout": 10.0}], "one request, and no retries"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_is_reported() -> None:
    with pytest.raises(TacitError, match="no GPU"):
        load_policy("tiny", EngineSettings(device="cuda"), world_texts=["a b"])


@pytest.mark.parametrize(
    "bad", [{"threads": -1}, {"max_batch": 0}, {"lora_dropout": 1.0}, {"betas": (0.9,)}, {"dtype": "int8"}]
)
def test_impossible_settings_are_refused(bad) -> None:
    with pytest.raises(TacitError, match=next(iter(bad))):
        EngineSettings(**bad)


def test_unknown_lora_targets_are_refused(make_policy) -> None:
    with pytest.raises(TacitError, match=r"nothing_proj.*down_proj"):
        make_policy(lora_rank=2, lora_targets=("nothing_proj",))


def test_settings_are_imported_without_torch() -> None:
    script = "import sys, tacit.engines.local.settings, tacit.engines.models.tiny; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.strip() == "False"


def test_chat_template_is_used_for_prompts(make_policy) -> None:
    policy = make_policy()
    tokenizer = policy.engine.tokenizer
    plain = policy.encode_prompt("hello")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}"
    )
    chat = TextCodec(tokenizer, 256)
    assert policy.decode(chat.encode_prompt("hello")) == "[user] hello[me]"
    texts = ["hello", "", "op(*, 3, 17)"]
    for codec in (policy, chat):
        together = codec.encode_prompts(texts)
        assert [t.tolist() for t in together] == [codec.encode_prompt(text).tolist() for text in texts]
    assert chat.encode_prompts([]) == []
    assert policy.decode(plain) == "hello"
