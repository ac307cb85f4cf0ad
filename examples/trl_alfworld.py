"""TRL's GRPO on ALFWorld, through the Gymnasium adapter: pip install trl 'tacit-agents[gymnasium]'

python examples/trl_alfworld.py [MODEL] [STEPS]. An episode is one token sequence; the loss masks observations."""

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
    """One episode per prompt. A prompt is a task number."""
    episodes = []
    for number in prompts:
        (text, info), paid = env.reset(options={"task": int(number)}), 0.0
        start, tokens, mask, done = tokenizer(text)["input_ids"], [], [], False
        while not done:
            context = torch.tensor([start + tokens], device=trainer.model.device)
            output = trainer.model.generate(context, do_sample=True, max_new_tokens=12, stop_strings="\n", tokenizer=tokenizer)
            completion = output[0, context.shape[1] :].tolist()
            text, reward, terminated, truncated, info = env.step(tokenizer.decode(completion, skip_special_tokens=True).strip())
            done, paid = terminated or truncated, paid + reward + 0.1 * info["effective"]  # a bonus for valid commands
            answer = [] if done else tokenizer(f"\n{text}", add_special_tokens=False)["input_ids"]
            tokens, mask = tokens + completion + answer, mask + [1] * len(completion) + [0] * len(answer)
        episodes.append((start, tokens, mask, paid))
    start, tokens, mask, paid = map(list, zip(*episodes, strict=True))
    return {"prompt_ids": start, "completion_ids": tokens, "logprobs": None, "env_mask": mask, "paid": paid}


settings = GRPOConfig(
    "runs/trl", max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 3, num_generations=4, per_device_train_batch_size=8,
    gradient_checkpointing=False, logging_steps=1, report_to=[], bf16=torch.cuda.is_available(),
)  # fmt: skip
games = Dataset.from_dict({"prompt": [str(number) for number in range(64)]})
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="auto" if settings.bf16 else torch.float32)
GRPOTrainer(model, lambda paid, **_: paid, settings, games, processing_class=tokenizer, rollout_func=play).train()
