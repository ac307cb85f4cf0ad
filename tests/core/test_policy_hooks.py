"""Optional policy hooks: PolicyHooks has defaults; a policy without them is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.core.errors import TacitError
from tacit.core.protocols import PolicyHooks, check_hooks


class Bytes(PolicyHooks):
    def encode_prompt(self, text):
        return np.frombuffer(text.encode(), np.uint8)


def test_each_hook_has_a_default():
    policy = check_hooks(Bytes())
    policy.check_answers()
    policy.close()
    assert (policy.version, policy.written_tokens, policy.numbers, policy.trouble) == (0, 0, "", "")
    assert policy.broken == () and policy.repeatable and not policy.elsewhere
    assert [tokens.tolist() for tokens in policy.encode_prompts(["a", "bc"])] == [[97], [98, 99]]


def test_a_policy_without_hooks_is_refused():
    with pytest.raises(TacitError, match="Plain lacks hooks of a policy; make it a subclass"):
        check_hooks(type("Plain", (), {"sample": None})())
