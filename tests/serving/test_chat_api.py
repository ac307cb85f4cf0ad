"""The OpenAI client against a running server."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from served import TOKEN, WORLD, Served

from tacit.modules import Agent


@pytest.fixture
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=TOKEN, max_retries=0, timeout=60)


def prompt_of(modules: Path) -> tuple[str, str]:
    """The first prompt of the heat module in an episode, and its greedy action."""
    agent, task = Agent.load(modules, temperature=0.0), WORLD.tasks_of("seen", 1, 0, ("heat",))[0]
    agent.begin(task)
    action = agent.act(WORLD.make().reset(task))
    assert agent.prompt is not None
    return agent.prompt.text, action


def test_models_list_contains_modules_and_base(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["alfworld/heat", "alfworld/pick", "tiny"]
    assert client.models.retrieve("alfworld/heat").id == "alfworld/heat"


def test_module_prompt_is_answered_with_its_action(client: openai.OpenAI, modules: Path) -> None:
    prompt, action = prompt_of(modules)
    ask = {"model": "heat", "messages": [{"role": "user", "content": prompt}], "temperature": 0}
    answer = client.chat.completions.create(**ask, logprobs=True)
    choice = answer.choices[0]
    assert choice.message.content.strip() == action and choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens == len(choice.logprobs.content) and choice.logprobs.content[0].logprob <= 0
    assert "".join(token.token for token in choice.logprobs.content).strip() == action
    pieces = [piece.choices[0].delta.content or "" for piece in client.chat.completions.create(**ask, stream=True)]
    assert "".join(pieces) == choice.message.content
    streamed = list(client.chat.completions.create(**ask, stream=True, logprobs=True, stream_options={"include_usage": True}))
    choices = [piece.choices[0] for piece in streamed if piece.choices]
    assert [token for one in choices if one.logprobs for token in one.logprobs.content] == choice.logprobs.content
    assert [one.finish_reason for one in choices] == [None, choice.finish_reason] and streamed[-1].usage == answer.usage
    base = client.chat.completions.create(**{**ask, "model": "tiny"}, max_tokens=8)
    assert base.usage.completion_tokens <= 8 and base.choices[0].message.content != choice.message.content


def test_null_fields_equal_omitted_fields(client: openai.OpenAI, server: Served) -> None:
    messages = [{"role": "user", "content": "room:", "name": None, "tool_calls": None}]
    ask = {"model": "tiny", "messages": messages, "max_tokens": 12, "seed": 3}
    unsaid = ("temperature", "top_p", "top_k", "n", "logprobs", "stream", "stop", "tools", "response_format", "top_logprobs")
    answer = server.post("/v1/chat/completions", {**ask, **dict.fromkeys(unsaid)})
    plain = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "room:"}], max_tokens=12, seed=3)
    assert answer["choices"][0]["message"]["content"] == plain.choices[0].message.content and len(answer["choices"]) == 1
    assert "messages: Field required" in server.refusal("/v1/chat/completions", {**ask, "messages": None})[1]
    called = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}
    assert "messages.0.tool_calls: Extra" in server.refusal("/v1/chat/completions", {**ask, "messages": [called]})[1]


def test_choices_differ_and_repeat_with_the_same_seed(client: openai.OpenAI) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "room:"}], "max_tokens": 12, "n": 4, "seed": 3}
    texts = [[c.message.content for c in client.chat.completions.create(**ask).choices] for _ in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1


def test_stop_string_is_not_part_of_the_answer(client: openai.OpenAI) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "room:"}], "max_tokens": 40, "seed": 3}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    stop = whole[3:5]
    cut = client.chat.completions.create(**ask, stop=[stop]).choices[0].message.content
    assert whole.startswith(cut) and stop not in cut


def test_errors_map_to_the_openai_clients_exceptions(client: openai.OpenAI, server: Served) -> None:
    say = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'; available are alfworld/heat"):
        client.chat.completions.create(model="gpt-9", messages=say)
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens 100000 is more than this server's limit of 512"):
        client.chat.completions.create(model="heat", messages=say, max_tokens=100_000)
    wrong = openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="the token is wrong"):
        wrong.models.list()
