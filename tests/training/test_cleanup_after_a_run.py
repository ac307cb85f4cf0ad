"""A run that ends, normally or with an error, leaves no thread running and no file open."""

from __future__ import annotations

import io
import threading

import pytest
from scripted import Kit, ScriptedPolicy, group_extractor, solve_countdown

from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.prompts.search_and_ask import ASK
from tacit.runs.directory import Run
from tacit.training.reporting import PlainReporter
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import WorldSetup
from tacit.training.train import Trainer
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = group_extractor(
    {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=0), "extractor_style": "terse"}
)


def asking(prompt: str, seed: int) -> str:
    may_ask = f"ask: {ASK}" in prompt and "what first?" not in prompt
    return f"{ASK} what first?" if may_ask else solve_countdown(next(line for line in prompt.splitlines() if " > " in line))


@pytest.mark.parametrize("stopped", [False, True])
def test_experience_threads_end_with_the_run(stopped, tmp_path):
    schedule = Schedule(groups=2, group_size=4, iterations=3, lr=1e-3)
    kit = Kit(ScriptedPolicy(lambda prompt, seed: "add: largest first"), tmp_path)
    method = get_method("complementary")(**TERSE, background=True, kl=0.0, schedule=schedule).build(WORLD, kit)
    run = Run.create(tmp_path / "run", {"method": {}})
    settings = TrainSettings(tasks=4, max_steps=4, evaluation=EvaluationSettings(tasks=2, untrained=False, every=0))
    seen, before = list[set[str]](), set(threading.enumerate())

    def watch(event: object) -> None:
        seen.append({thread.name for thread in set(threading.enumerate()) - before})
        if stopped and len(seen) == 2:
            raise TacitError("enough")

    setups = [WorldSetup.of(WORLD, method, settings)]
    trainer = Trainer(run, ScriptedPolicy(asking), setups, settings, PlainReporter(io.StringIO()), callbacks=[watch])
    try:
        trainer.train()
    except TacitError as error:
        assert stopped and str(error) == "enough"
    finally:
        run.close()
    assert {"experience", "extractor"} <= seen[-1], "the companion's threads ran"
    assert not {thread.name for thread in set(threading.enumerate()) - before}
    assert not list((tmp_path / "experience").glob("*-wal")), "a closed bank has no write-ahead log"
