"""A model behind the Tinker API: LoRA adapters that are trained and sampled on other machines, from here."""
