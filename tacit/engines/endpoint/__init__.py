"""Models behind an OpenAI-compatible HTTP endpoint: a client, and a policy that can only sample."""
