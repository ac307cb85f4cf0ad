"""Unusual endpoint answers. A failure of the model is a completion; only a failure of the server is an error."""

from __future__ import annotations

import json

import pytest
from chat_server import says, serving

from tacit.core.chat import Chat, Message
from tacit.core.protocols import Request, Sampling
from tacit.engines.endpoint import BrokenAnswer, ChatClient, ChatPolicy, read_answer

HALF = "\ud83d"


def answer(content, finish: str = "stop", **message):
    """The parsed answer of a chat completion with this message."""
    return read_answer(
        json.dumps({"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}).encode()
    )


def call(arguments, name: str = "act"):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_lone_surrogate_in_an_answer_becomes_a_question_mark():
    message = answer(f"x {HALF} y", reasoning_content=f"hm {HALF}", tool_calls=[call(json.dumps({"action": f"go {HALF}"}))])
    assert (message.text, message.thought, dict(message.calls[0].arguments)) == ("x ? y", "hm ?", {"action": "go ?"})
    assert answer("a whole \U0001f600").text == "a whole \U0001f600"
    with serving(lambda body: (200, {**says(f"look {HALF}"), "usage": None})) as server:
        policy = ChatPolicy(ChatClient(server.url, "m"))
        prompts = policy.encode_prompt("hello"), policy.encode_chat(Chat((Message("user", "hello"),)))
        completions = policy.sample([Request(prompt, 0) for prompt in prompts], Sampling())
    assert [completion.text for completion in completions] == ["look ?", "look ?"]


def test_lone_surrogate_in_an_error_message_becomes_a_question_mark():
    with serving(lambda body: (400, {"error": {"message": f"cannot read {HALF}"}})) as server:
        policy = ChatPolicy(ChatClient(server.url, "m"))
        policy.sample([Request(policy.encode_prompt("hello"), 0)], Sampling())
    assert policy.broken == ["400 cannot read ?"]


def test_answer_with_only_a_truncated_thought_is_unfinished():
    cut = answer(None, "length", reasoning_content="Let me think about 26 and")
    assert (cut.text, cut.thought, cut.finished) == ("", "Let me think about 26 and", False)


@pytest.mark.parametrize("arguments", ["{not json", '["go"]', "go"])
@pytest.mark.parametrize("content", [None, ""])
def test_unparsable_tool_call_is_returned_as_text(content, arguments):
    parsed = answer(content, tool_calls=[call(arguments)])
    assert (parsed.text, parsed.calls, parsed.finished) == (arguments, (), True)


def test_refusal_text_is_the_answer():
    assert answer(None, refusal="I cannot do that.").text == "I cannot do that."
    assert answer("", refusal=None).text == "", "an empty answer is an answer"


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "<action>"}, {"type": "image_url"}, {"type": "text", "text": f"go{HALF}</action>"}]
    assert answer(parts).text == "<action>go?</action>"


@pytest.mark.parametrize("message", [{}, {"tool_calls": []}, {"tool_calls": [3]}, {"refusal": None, "reasoning": " "}])
@pytest.mark.parametrize("content", [None, [], 3, [{"type": "image_url"}]])
def test_empty_answer_is_broken(content, message):
    with pytest.raises(BrokenAnswer, match="no text, no thought and no call"):
        answer(content, **message)


def test_failures_of_the_model_are_completions_and_not_server_errors():
    replies = iter([{"reasoning_content": "hm"}, {"tool_calls": [call("{not json")]}, {"refusal": "no"}])
    reply = lambda body: (200, {"choices": [{"message": {"content": None, **next(replies)}, "finish_reason": "length"}]})  # noqa: E731
    with serving(reply) as server:
        policy = ChatPolicy(ChatClient(server.url, "m"), concurrency=1)
        prompt = policy.encode_chat(Chat((Message("user", "hello"),)))
        completions = policy.sample([Request(prompt, i) for i in range(3)], Sampling())
    assert [c.text for c in completions] == ["<think>\nhm\n</think>\n\n", "{not json", "no"] and policy.broken == []
    assert {c.finish for c in completions} == {"length"}
