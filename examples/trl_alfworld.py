"""GRPO of TRL on our household, through the Gymnasium door: pip install trl 'tacit-agents[gymnasium]'

python examples/trl_alfworld.py [MODEL] [STEPS]. A game is one growing text; what the agent read in it is masked."""

import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tacit.engines.models.bases import FOLDER
from tacit.integrations.gymnasium import TacitEnv

MODEL = sys.argv[1] if len(sys.argv) > 1 else str(FOLDER / "tiny-base")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
env = TacitEnv("alfworld", split="train", max_steps=6, wording="terse")


def play(prompts, trainer):
    """One game for each prompt, which is the number of a task."""
    games = []
    for number in prompts:
        (text, info), paid = env.reset(options={"task": int(number)}), 0.0
        start, rest, ours, over = tokenizer(text)["input_ids"], [], [], False
        while not over:
            known = torch.tensor([start + rest], device=trainer.model.device)
            said = trainer.model.generate(known, do_sample=True, max_new_tokens=12, stop_strings="\n", tokenizer=tokenizer)
            said = said[0, known.shape[1] :].tolist()
            text, reward, terminated, truncated, info = env.step(tokenizer.decode(said, skip_special_tokens=True).strip())
            over, paid = terminated or truncated, paid + reward + 0.1 * info["effective"]  # a command that was understood
            answer = [] if over else tokenizer(f"\n{text}", add_special_tokens=False)["input_ids"]
            rest, ours = rest + said + answer, ours + [1] * len(said) + [0] * len(answer)
        games.append((start, rest, ours, paid))
    start, rest, ours, paid = map(list, zip(*games, strict=True))
    return {"prompt_ids": start, "completion_ids": rest, "logprobs": None, "env_mask": ours, "paid": paid}


settings = GRPOConfig(
    "runs/trl", max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 3, num_generations=4, per_device_train_batch_size=8,
    gradient_checkpointing=False, logging_steps=1, report_to=[], bf16=torch.cuda.is_available(),
)  # fmt: skip
games = Dataset.from_dict({"prompt": [str(number) for number in range(64)]})
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto" if settings.bf16 else torch.float32)
GRPOTrainer(model, lambda paid, **_: paid, settings, games, processing_class=tokenizer, rollout_func=play).train()
