"""An in-process Tinker service: a real model with peft adapters, the client package's types, and answers as futures. It follows
the API's documentation: losses are sums over tokens, and gradients accumulate until a step."""

from __future__ import annotations

import copy
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
import torch
from peft import LoraConfig, get_peft_model
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def finished(value: Any) -> Future:
    future: Future = Future()
    future.set_result(value)
    return future


class Loopback:
    """`rescales`: the loss of a row is divided by the sum of its absolute advantages, as a real server was found to do with
    weights. `silent`: the gradient norm is not reported. `stuck`: requests are never answered."""

    def __init__(self, rescales: bool = False, silent: bool = False, stuck: bool = False) -> None:
        self.rescales, self.silent, self.stuck = rescales, silent, stuck
        self.kept: dict[str, Any] = {}
        self.adapters = 0

    def get_server_capabilities(self) -> Any:
        return SimpleNamespace(supported_models=[SimpleNamespace(model_name="small", max_context_length=None)])

    def create_lora_training_client(self, base_model: str, rank: int = 32, seed: int | None = None, **more: Any) -> Training:
        assert not more
        self.adapters += 1
        return Training(self, base_model, rank, seed, f"tinker://{self.adapters}")

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None) -> Sampler:
        if model_path is None:
            return Sampler(AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32).eval())
        return Sampler(self.kept[model_path]["whole"])


class Training:
    def __init__(self, service: Loopback, base_model: str, rank: int, seed: int | None, run: str) -> None:
        self.service, self.base_model, self.run = service, base_model, run
        torch.manual_seed(seed or 0)
        model = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
        self.model: Any = get_peft_model(model, LoraConfig(r=rank, lora_alpha=32, target_modules=PROJECTIONS)).eval()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0)

    def get_tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.base_model)

    def forward(self, data: list[types.Datum], loss_fn: str, loss_fn_config: Any = None) -> Future:
        with torch.no_grad():
            return self._passed(data, loss_fn)[0]

    def forward_backward(self, data: list[types.Datum], loss_fn: str, loss_fn_config: Any = None) -> Future:
        future, loss = self._passed(data, loss_fn)
        loss.backward()
        return future

    def _passed(self, data: list[types.Datum], loss_fn: str) -> tuple[Future, torch.Tensor]:
        if self.service.stuck:
            return Future(), torch.zeros((), requires_grad=True)
        losses, outputs = [], []
        for datum in data:
            assert isinstance(datum, types.Datum)
            inputs = {name: torch.tensor(value.data) for name, value in datum.loss_fn_inputs.items()}
            tokens, targets = torch.tensor(datum.model_input.to_ints()), inputs["target_tokens"]
            assert len(tokens) == len(targets)
            logprobs = torch.log_softmax(self.model(input_ids=tokens[None]).logits[0].float(), -1)
            chosen = logprobs[torch.arange(len(targets)), targets]
            losses.append(self._loss(loss_fn, chosen, inputs))
            outputs.append({"logprobs": types.TensorData(data=chosen.tolist(), dtype="float32", shape=[len(targets)])})
        loss = torch.stack(losses).sum()
        metrics = {"loss:sum": float(loss.detach())}
        return finished(
            types.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=outputs, metrics=metrics)
        ), loss

    def _loss(self, name: str, chosen: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if name == "cross_entropy":
            return -(chosen * inputs["weights"]).sum()
        assert name == "importance_sampling", name
        weights = inputs["advantages"]
        loss = -(torch.exp(chosen - inputs["logprobs"]) * weights)
        # The advantage is 0 on prompt tokens; 0 · e^(log π) must not become nan there.
        loss = torch.where(weights == 0, torch.zeros_like(loss), loss).sum()
        return loss / weights.abs().sum() if self.service.rescales else loss

    def optim_step(self, params: types.AdamParams) -> Future:
        assert isinstance(params, types.AdamParams)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.trained if p.grad is not None])
        if params.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(self.trained, params.grad_clip_norm)
        for group in self.optimizer.param_groups:
            group |= {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.eps}
            group["weight_decay"] = params.weight_decay
        self.optimizer.step()
        self.optimizer.zero_grad()
        metrics = None if self.service.silent else {"unclipped_grad_l2:mean": float(norm)}
        return finished(types.OptimStepResponse(metrics=metrics))

    def save_state(self, name: str) -> Future:
        path = f"{self.run}/weights/{name}"
        self.service.kept[path] = {
            "trained": [p.detach().clone() for p in self.trained],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }
        return finished(types.SaveWeightsResponse(path=path))

    def load_state(self, path: str, optimizer: bool = False) -> Future:
        kept = self.service.kept[path]
        with torch.no_grad():
            for own, saved in zip(self.trained, kept["trained"], strict=True):
                own.copy_(saved)
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0)
        if optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(kept["optimizer"]))
        return finished(types.LoadWeightsResponse(path=path))

    def load_state_with_optimizer(self, path: str) -> Future:
        return self.load_state(path, optimizer=True)

    def save_weights_for_sampler(self, name: str) -> Future:
        path = f"{self.run}/sampler_weights/{name}"
        self.service.kept[path] = {"whole": copy.deepcopy(self.model).merge_and_unload()}
        return finished(types.SaveWeightsForSamplerResponse(path=path))


class Sampler:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokenizer = None
        self.read: dict[tuple[int, ...], torch.Tensor] = {}
        """cached next-token logits by sequence"""

    @torch.no_grad()
    def compute_logprobs(self, prompt: types.ModelInput) -> Future:
        tokens = torch.tensor(prompt.to_ints())
        logprobs = torch.log_softmax(self.model(input_ids=tokens[None]).logits[0].float(), -1)
        chosen = logprobs[torch.arange(len(tokens) - 1), tokens[1:]].tolist()
        return finished([None, *chosen])

    @torch.no_grad()
    def sample(self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams) -> Future:
        assert num_samples == 1 and isinstance(sampling_params, tinker.SamplingParams)
        noise = torch.Generator().manual_seed(sampling_params.seed or 0)
        tokens, read = [], prompt.to_ints()
        sampled, reason = [], "length"
        end = self.model.config.eos_token_id
        for _ in range(sampling_params.max_tokens):
            logits = self._next((*read, *tokens))
            warm = sampling_params.temperature or 1.0
            logprobs = torch.log_softmax(logits / warm, -1)
            if sampling_params.temperature == 0:
                token = int(logprobs.argmax())
            else:
                token = int(torch.multinomial(logprobs.exp(), 1, generator=noise))
            tokens.append(token)
            sampled.append(float(logprobs[token]))
            if token == end or self._stops(tokens, sampling_params.stop):
                reason = "stop"
                break
        written = {"tokens_np": np.array(tokens, np.int32), "logprobs_np": np.array(sampled, np.float32)}
        return finished(types.SampleResponse([types.SampledSequence(reason, "loopback", **written)]))

    def _next(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens not in self.read:
            self.read[tokens] = self.model(input_ids=torch.tensor([tokens])).logits[0, -1].float()
        return self.read[tokens]

    def _stops(self, tokens: list[int], stop: Any) -> bool:
        if not stop:
            return False
        if self.tokenizer is None:
            self.tokenizer = AutoTokenizer.from_pretrained(self.model.config._name_or_path)
        text = self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return any(word in text for word in stop)
