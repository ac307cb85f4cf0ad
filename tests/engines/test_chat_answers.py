"""What endpoints say that is not quite an answer: the model's own failure is a turn of its own, and not the server's."""

from __future__ import annotations

import json

from chat_server import says, serving

from tacit.core.chat import Chat, Message
from tacit.core.protocols import Request, Sampling
from tacit.engines.chat.client import ChatClient, read_answer
from tacit.engines.chat.policy import ChatPolicy

HALF = "\ud83d"


def answer(content, finish: str = "stop", **message):
    """What is read of a chat completion with this message."""
    return read_answer(
        json.dumps({"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}).encode()
    )


def call(arguments, name: str = "act"):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_half_a_character_is_a_question_mark_wherever_it_is_said():
    spoken = answer(f"x {HALF} y", reasoning_content=f"hm {HALF}", tool_calls=[call(json.dumps({"action": f"go {HALF}"}))])
    assert (spoken.text, spoken.thought, dict(spoken.calls[0].arguments)) == ("x ? y", "hm ?", {"action": "go ?"})
    assert answer("a whole \U0001f600").text == "a whole \U0001f600"
    with serving(lambda body: (200, {**says(f"look {HALF}"), "usage": None})) as server:
        policy = ChatPolicy(ChatClient(server.url, "m"))
        prompts = policy.encode_prompt("hello"), policy.encode_chat(Chat((Message("user", "hello"),)))
        said = policy.sample([Request(prompt, 0) for prompt in prompts], Sampling())
    assert [completion.text for completion in said] == ["look ?", "look ?"]


def test_half_a_character_in_what_a_server_says_of_its_failure():
    with serving(lambda body: (400, {"error": {"message": f"cannot read {HALF}"}})) as server:
        policy = ChatPolicy(ChatClient(server.url, "m"))
        policy.sample([Request(policy.encode_prompt("hello"), 0)], Sampling())
    assert policy.broken == ["400 cannot read ?"]
