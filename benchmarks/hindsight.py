"""Cost of hindsight: phases of an iteration of GRPO and of OPID, and the time spent waiting for an analyzer behind an endpoint.

    python benchmarks/hindsight.py                     # ALFWorld, tiny-base, 4 groups of 8
    python benchmarks/hindsight.py --groups 8 --json

Iteration: the same tasks and settings, with the reference's KL; rules write OPID's skills. OPID's scoring pass is one forward
pass over all turns, with the skill. Reported are its share of time, and its share of processed tokens (rollout, reference,
scoring and update; the sampler computes equal prompts once, so it processes fewer).

Endpoint: a local server that delays each answer. Reported are the time the trainer waited, and the time from the first question
to the last answer. Equal episodes are asked about once.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tacit.companions.hindsight import Hindsight, ModelAnalyzer, RoutedSkills
from tacit.core.method import Method, Schedule
from tacit.core.types import flat_steps
from tacit.credit.skill_shift import SkillShift
from tacit.engines.endpoint import ChatClient, ChatPolicy
from tacit.engines.local.policy import LocalPolicy, load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import PHASES, Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")
SETTINGS = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=2), "kl": 0.01}
SKILLS = {"episode_summary": "", "episode_skill": "look in the likeliest places first", "step_skills": {"0": "go to fridge 1"}}


def build(name: str, groups: int) -> Method:
    method = get_method(name)(**SETTINGS)
    return replace(method, schedule=Schedule(groups=groups, group_size=8, lr=1e-4)).build(WORLD)


def loop_of(method: Method, policy: LocalPolicy, steps: int) -> Loop:
    tasks = WORLD.tasks("train", method.schedule.groups, 0)
    return Loop([Collector(method, tasks, InProcessPool(WORLD.make), WORLD.action_tokens, steps)], policy, iterations=2)


def iteration(name: str, groups: int, steps: int, policy: LocalPolicy) -> dict[str, Any]:
    """Seconds by phase, and the share of time and of tokens that scoring with skills takes."""
    scored = {"seconds": 0.0, "tokens": 0}
    plain = policy.logprobs

    def timed(prompts: Any, completions: Any, temperature: float = 1.0) -> Any:
        began = time.perf_counter()
        found = plain(prompts, completions, temperature)
        scored["seconds"] += time.perf_counter() - began
        scored["tokens"] += sum(map(len, prompts)) + sum(map(len, completions))
        return found

    policy.logprobs = timed  # type: ignore[method-assign]
    try:
        done = loop_of(build(name, groups), policy, steps).iterate(1)
    finally:
        policy.logprobs = plain  # type: ignore[method-assign]
    seconds = {phase: done.metrics[f"seconds_{phase}"] for phase in PHASES}
    turns = flat_steps(done.groups)
    step_tokens = sum(len(turn.prompt_tokens) + len(turn.completion.tokens) for turn in turns)
    all_tokens = 3 * step_tokens + scored["tokens"]  # rollout, reference and update process each token once
    return {
        "method": name,
        "episodes": sum(map(len, done.groups)),
        "turns": len(turns),
        "seconds": seconds,
        "whole_s": sum(seconds.values()),
        "scoring_s": scored["seconds"],
        "share_of_time": scored["seconds"] / sum(seconds.values()),
        "share_of_tokens": scored["tokens"] / all_tokens,
    }


@contextmanager
def slow_server(pause_s: float, answered: list[float]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(pause_s)
            message = {"role": "assistant", "content": json.dumps(SKILLS)}
            body = {"choices": [{"message": message, "finish_reason": "stop"}]}
            raw = json.dumps({**body, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            answered.append(time.perf_counter())

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def waiting(groups: int, steps: int, policy: LocalPolicy, pause_s: float, concurrency: int) -> dict[str, Any]:
    answered: list[float] = []
    with slow_server(pause_s, answered) as url:
        chat = ChatPolicy(ChatClient(url, "analyst"), concurrency)
        hindsight = Hindsight(ModelAnalyzer(lambda: chat))
        method = replace(build("opid", groups), companions=(hindsight,))
        credits = (method.credits[0], SkillShift(RoutedSkills(hindsight)))
        loop = loop_of(replace(method, credits=credits), policy, steps)
        collected = loop.collect(1)
        began = time.perf_counter()
        done = loop.learn(collected)
    worked, waited = max(answered) - began, done.metrics["hindsight/seconds_waited"]
    return {
        "questions": len(answered),
        "worked_s": worked,
        "waited_s": waited,
        "saved_s": worked - waited,
        "reference_s": done.metrics["seconds_scoring"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-base")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds the endpoint takes per answer")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    policy = load_policy(arguments.model, EngineSettings(threads=arguments.threads))
    policy.freeze_reference()
    iteration("opid", 1, 2, policy)  # warm-up
    rows = [iteration(name, arguments.groups, arguments.steps, policy) for name in ("grpo", "opid")]
    waited = waiting(arguments.groups, arguments.steps, policy, arguments.pause, arguments.concurrency)
    if arguments.json:
        print(json.dumps({"iterations": rows, "endpoint": waited}))
        return
    for row in rows:
        phases = ", ".join(f"{phase} {spent:.2f}" for phase, spent in row["seconds"].items())
        print(f"{row['method']}: {row['episodes']} episodes, {row['turns']} turns, {row['whole_s']:.2f} s ({phases})")
        if row["scoring_s"]:
            shares = f"{row['share_of_time']:.0%} of the time, {row['share_of_tokens']:.0%} of the tokens"
            print(f"      scoring with skills: {row['scoring_s']:.2f} s, {shares}")
    summary = f"worked {waited['worked_s']:.2f} s, waited for {waited['waited_s']:.2f} s: {waited['saved_s']:.2f} s saved"
    print(f"endpoint, {waited['questions']} questions: {summary} (reference {waited['reference_s']:.2f} s)")


if __name__ == "__main__":
    main()
