"""Measure vLLM on the same work, in a separate process, since its dependencies may conflict with ours.

    PYTHONPATH=DIRECTORY python benchmarks/vllm_peer.py WORKS.json

A work is a list of episodes; an episode is a list of turns, each a pair (prompt, number of new tokens). All episodes run
concurrently; a turn is submitted when the previous one is finished, as in our rollout. One vLLM does all works, one after
another. The last line is a JSON object: for each work, the seconds of each repeat, without start-up.

Differences to our rollout: vLLM gets tokens, while we encode text, and it has no adapters; both favor vLLM. Its engine runs in
the calling process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`); by default it has its own, which overlaps some host work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Work = list[list[tuple[list[int], int]]]

QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
LIMIT_S = 900
"""time limit for start-up and all works"""


def work_of(played: Iterable[Any]) -> Work:
    """Prompts and completion lengths of played episodes."""
    return [[(step.prompt_tokens.tolist(), len(step.completion.tokens)) for step in episode.steps] for episode in played]


def beside_vllm(model: str, works: Mapping[str, Work], directory: str | None, repeats: int) -> dict[str, dict[str, Any]]:
    """work -> {"seconds": [...], "tokens": n, "version": "0.26.0", "started_s": s} or {"failed": reason}. `directory`
    has vLLM, if it is not installed with Tacit."""
    try:
        return _run_vllm(model, works, directory, repeats)
    except Failed as failed:
        return {name: {"failed": str(failed)} for name in works}


class Failed(Exception):
    pass


def _run_vllm(model: str, works: Mapping[str, Work], directory: str | None, repeats: int) -> dict[str, dict[str, Any]]:
    environment = {**os.environ, **QUIET}
    if directory:
        if not Path(directory).expanduser().is_dir():
            raise Failed(f"there is no directory {directory}")
        environment["PYTHONPATH"] = str(Path(directory).expanduser())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "works.json"
        path.write_text(json.dumps({"model": model, "works": works, "repeats": repeats}))
        words = [sys.executable, __file__, str(path)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"no answer within {LIMIT_S} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        errors = [line for line in (done.stderr or "").strip().splitlines() if line.strip()]
        raise Failed(errors[-1][:300] if errors else f"exit code {done.returncode}")
    try:
        return json.loads(lines[-1])
    except ValueError:
        raise Failed(f"its output is not JSON: {lines[-1][:200]!r}") from None


def main() -> None:
    from vllm import LLM, SamplingParams, __version__
    from vllm.sampling_params import RequestOutputKind

    request = json.loads(Path(sys.argv[1]).read_text())
    works = request["works"].values()
    began = time.perf_counter()
    llm = LLM(
        model=request["model"],
        dtype="bfloat16",
        enable_prefix_caching=True,
        gpu_memory_utilization=0.5,
        max_model_len=8 + max(len(prompt) + new for work in works for episode in work for prompt, new in episode),
        max_num_seqs=max(len(work) for work in works),
        skip_tokenizer_init=True,
        seed=0,
    )
    started_s = time.perf_counter() - began
    engine = llm.llm_engine

    def play(work: Work) -> int:
        """Play all episodes; returns the number of sampled tokens."""
        written = 0

        def ask(number: int, turn: int) -> None:
            prompt, new = work[number][turn]
            engine.add_request(
                f"{number} {turn}",
                {"prompt_token_ids": prompt},
                SamplingParams(
                    temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )  # fmt: skip

        for number in range(len(work)):
            ask(number, 0)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    written += len(output.outputs[0].token_ids)
                    number, turn = map(int, output.request_id.split())
                    if turn + 1 < len(work[number]):
                        ask(number, turn + 1)
        return written

    found = {}
    for name, work in request["works"].items():
        seconds = []
        for repeat in range(request["repeats"] + 1):  # the first repeat warms up
            llm.reset_prefix_cache()
            began = time.perf_counter()
            tokens = play(work)
            if repeat:
                seconds.append(time.perf_counter() - began)
        found[name] = {"seconds": seconds, "tokens": tokens, "version": __version__, "started_s": started_s}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
