"""A model behind the Tinker API: LoRA adapters that are trained and sampled on remote machines."""
