"""vLLM at the same work, in a process of its own: it brings its own versions of much, and may not start at all.

    PYTHONPATH=DIRECTORY python benchmarks/vllm_peer.py WORK.json

The work is a list of waves, each of (prompt, tokens to write) pairs; a wave begins when the one before it is over, as the turns
of episodes do. Prints one JSON object last: seconds of each repeat, without what it takes to start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Wave = list[tuple[list[int], int]]

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
START_S = 300


def beside_vllm(model: str, waves: list[Wave], directory: str | None, repeats: int, logprobs: bool = True) -> dict[str, Any]:
    """{"seconds": [...], "tokens": n, "version": "0.26.0"}, or {"failed": why}. `directory` is where vLLM lies, where it is not
    installed beside Tacit."""
    environment = {**os.environ, **QUIET}
    if directory:
        if not Path(directory).expanduser().is_dir():
            return {"failed": f"there is no directory {directory}"}
        environment["PYTHONPATH"] = str(Path(directory).expanduser())
    most = max(len(prompt) + new for wave in waves for prompt, new in wave)
    work = {"model": model, "waves": waves, "repeats": repeats, "logprobs": logprobs, "most": most}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.json"
        path.write_text(json.dumps(work))
        try:
            done = subprocess.run(
                [sys.executable, __file__, str(path)], capture_output=True, text=True, env=environment, timeout=START_S
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no answer within {START_S} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = [line for line in (done.stderr or "").strip().splitlines() if line.strip()]
        return {"failed": said[-1][:300] if said else f"exit code {done.returncode}"}
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {"failed": f"it said {lines[-1][:200]!r}"}


def main() -> None:
    from vllm import LLM, SamplingParams, __version__

    work = json.loads(Path(sys.argv[1]).read_text())
    rows = max(len(wave) for wave in work["waves"])
    began = time.perf_counter()
    llm = LLM(
        model=work["model"],
        dtype="bfloat16",
        enable_prefix_caching=True,
        gpu_memory_utilization=0.5,
        max_model_len=work["most"] + 8,
        max_num_seqs=rows,
        skip_tokenizer_init=True,
        seed=0,
    )
    started_s = time.perf_counter() - began

    def play() -> int:
        written = 0
        for wave in work["waves"]:
            prompts = [{"prompt_token_ids": prompt} for prompt, _ in wave]
            asked = [
                SamplingParams(
                    temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0 if work["logprobs"] else None
                )
                for _, new in wave
            ]
            written += sum(len(out.outputs[0].token_ids) for out in llm.generate(prompts, asked, use_tqdm=False))
        return written

    seconds = []
    for repeat in range(work["repeats"] + 1):  # the first warms up
        llm.reset_prefix_cache()
        began = time.perf_counter()
        tokens = play()
        if repeat:
            seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "version": __version__, "started_s": started_s}))


if __name__ == "__main__":
    main()
