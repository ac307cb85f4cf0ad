"""The Tinker service: connecting, waiting for results, and checking it before training.

The engine uses only these methods of the client: `ServiceClient.create_lora_training_client`, `create_sampling_client` and
`get_server_capabilities`; `TrainingClient.forward`, `forward_backward`, `optim_step`, `save_state`, `load_state`,
`load_state_with_optimizer`, `save_weights_for_sampler`, `get_tokenizer`; `SamplingClient.sample` and `compute_logprobs`.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.core.bounds import AtLeastOne, NotNegative, Positive
from tacit.core.errors import TacitError, first_line, install_command
from tacit.core.trust import check_endpoint
from tacit.engines.local.settings import check_betas


@dataclass(frozen=True)
class TinkerSettings:
    url: str = ""
    """URL of the service; empty is TINKER_BASE_URL if set, else the hosted service"""
    key_variable: str = "TINKER_API_KEY"
    """environment variable with the API key"""
    lora_rank: AtLeastOne = 32
    """rank of the LoRA adapters; the API trains adapters only"""
    tokenizer: str = ""
    """directory or hub id of the tokenizer, if the client cannot find the model's"""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moment decays"""
    weight_decay: NotNegative = 0.01
    """AdamW weight decay"""
    clip_norm: NotNegative = 1.0
    """clip the global gradient norm to this; 0 does not clip"""
    context: AtLeastOne = 32_768
    """maximum prompt plus completion, unless the service or the tokenizer has a lower limit"""
    timeout_s: Positive = 1800.0
    """seconds for one answer"""
    probe: bool = True
    """when connecting, check with a temporary adapter that ten times the loss gives ten times the gradient"""

    def __post_init__(self) -> None:
        if self.lora_rank < 1:
            raise TacitError(
                f"engine setting lora_rank = {self.lora_rank}: the Tinker API trains adapters only; give a rank of at least 1."
            )
        check_betas(self.betas)


def make_datum(prompt: np.ndarray, completion: np.ndarray, **numbers: np.ndarray) -> Any:
    """A row for the API: its tokens without the last. Position i predicts token i + 1. Loss inputs have one number per
    position: zeros for the prompt's own tokens, then `numbers`, one per completion token.

    Cross entropy with `weights` of 1 returns log-probabilities. `importance_sampling` is −Σ exp(log π − logprobs) · advantages,
    whose gradient at logprobs = log π is −Σ advantages · ∇log π. So a gradient is sent as advantages with the opposite sign,
    with the `logprobs` that the service has just computed.
    """
    import tinker

    tokens, padding = np.concatenate([prompt, completion]), np.zeros(len(prompt) - 1)
    inputs = {"target_tokens": tinker.TensorData(data=tokens[1:].tolist(), dtype="int64", shape=[len(tokens) - 1])}
    for name, per_token in numbers.items():
        padded = np.concatenate([padding, per_token]).astype(np.float32)
        inputs[name] = tinker.TensorData(data=padded.tolist(), dtype="float32", shape=[len(padded)])
    return tinker.Datum(model_input=model_input(tokens[:-1]), loss_fn_inputs=inputs)


def model_input(tokens: np.ndarray) -> Any:
    import tinker

    return tinker.ModelInput.from_ints(tokens=np.asarray(tokens).tolist())


NORMS = ("unclipped_grad_l2:mean", "skyrl.ai/grad_norm", "grad_norm")
"""names of the gradient norm in the metrics of a step, by service"""
PROBE = (np.arange(11, 27), np.arange(27, 35))  # prompt and completion of the probe; arbitrary tokens


def open_service(settings: TinkerSettings) -> Any:
    try:
        import tinker
    except ImportError as error:
        raise TacitError(f"the engine 'tinker' needs the package {error.name}: {install_command('tinker')}.") from error
    check_endpoint(settings.url, settings.key_variable)
    key = os.environ.get(settings.key_variable, "")
    if not key:
        raise TacitError(f"${settings.key_variable} is not set; put the API key in it, or in another --engine.key-variable.")
    options: dict[str, Any] = {"base_url": settings.url} if settings.url else {}
    try:
        return tinker.ServiceClient(api_key=key, **options)
    except Exception as error:
        where = settings.url or os.environ.get("TINKER_BASE_URL", "the hosted service")
        message = f"cannot connect to {where}: {first_line(error)} Check --engine.url, the key and the network."
        raise TacitError(message) from error


def await_result(future: Any, settings: TinkerSettings, what: str) -> Any:
    """The result of a future; raises after the time limit or on an error of the service."""
    try:
        return future.result(timeout=settings.timeout_s)
    except (TimeoutError, concurrent.futures.TimeoutError) as error:
        raise TacitError(
            f"the service did not answer within {settings.timeout_s:g} s: {what}. Raise --engine.timeout-s, or check its "
            "queue; resume the run from its last checkpoint with `tacit train --resume RUN`."
        ) from error
    except TacitError:
        raise
    except Exception as error:
        raise TacitError(f"the service failed: {what}: {first_line(error)}") from error


def gradient_norm(metrics: Mapping[str, float] | None) -> float | None:
    """Norm of a step's gradient before clipping; None if the service does not report it."""
    return next((float(metrics[name]) for name in NORMS if name in metrics), None) if metrics else None


def check_loss_is_not_rescaled(service: Any, base_model: str, settings: TinkerSettings) -> None:
    """Raise unless ten times the loss gives ten times the gradient. A service may normalize losses itself, which would silently
    change our losses, since these are sums divided by totals of the whole batch. Uses a temporary adapter with learning rate 0.
    Also raises if the service does not report gradient norms."""
    import tinker

    client, norms = new_adapter(service, base_model, settings, seed=0), []
    for scale in (1.0, 10.0):
        weights = scale * np.linspace(0.5, 1.0, len(PROBE[1]))
        data = [make_datum(*PROBE, logprobs=np.full(len(PROBE[1]), -1.0), advantages=-weights)]
        await_result(client.forward_backward(data, "importance_sampling"), settings, "the probe's gradient")
        step = await_result(client.optim_step(tinker.AdamParams(learning_rate=0.0)), settings, "the probe's step")
        norms.append(gradient_norm(step.metrics))
    if norms[0] is None or norms[1] is None:
        raise TacitError(
            "the service does not report gradient norms, so it cannot be checked that ten times the loss gives ten times the "
            "gradient; if you know that it does, skip the check with --no-engine.probe."
        )
    if not 9.5 * norms[0] < norms[1] < 10.5 * norms[0]:
        raise TacitError(
            f"ten times the loss gave {norms[1] / norms[0] if norms[0] else float('nan'):.3g} times the gradient "
            f"({norms[0]:.4g} and {norms[1]:.4g}): this service rescales losses, so no method would train as published. Use "
            "another service, or the local engine."
        )


def new_adapter(service: Any, base_model: str, settings: TinkerSettings, seed: int) -> Any:
    try:
        return service.create_lora_training_client(base_model=base_model, rank=settings.lora_rank, seed=seed)
    except Exception as error:
        names = [str(model.model_name) for model in _models(service)]
        models = f" It has: {', '.join(names)}." if names else ""
        raise TacitError(f"the service cannot train {base_model!r}: {first_line(error)}{models}") from error


def find_context_limit(service: Any, base_model: str, tokenizer: Any, settings: TinkerSettings) -> int:
    """The smallest limit of service, tokenizer and settings."""
    tokenizer_limit = int(tokenizer.model_max_length)  # huge if the tokenizer has none
    limits = [getattr(model, "max_context_length", None) for model in _models(service) if model.model_name == base_model]
    limits += [settings.context, tokenizer_limit if 0 < tokenizer_limit < 10**9 else None]
    return min(int(limit) for limit in limits if limit)


def _models(service: Any) -> Sequence[Any]:
    try:
        return list(service.get_server_capabilities().supported_models)
    except Exception:
        return ()  # older servers lack this call
