"""Conversations in a model's own chat template, as text.

What a template cannot say is said in words: where it knows no tools they are listed in the system message and calls are written
as most models write them; where it knows no system message, that stands before the first user message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tacit.core.chat import Call, Chat, Message, Tool
from tacit.core.errors import TacitError

SPOKEN_TOOLS = """You can call these tools:
{tools}
To call one, write its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": NAME, "arguments": {{ARGUMENT: VALUE}}}}
</tool_call>"""
PROBE = Chat(
    (
        Message("user", "look"),
        Message("assistant", "", Call("probe", {"action": "probed"})),
        Message("tool", "answered"),
    ),
    (Tool("probe", "action", "summary"),),
)


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    tokenizer: Any

    def prompt(self, chat: Chat) -> str:
        """Everything up to where the assistant's next message begins."""
        return self._render(self._sayable(chat), chat.thinking, open_answer=True)

    def answer(self, chat: Chat, message: Message) -> str:
        """The assistant's next message as this template has it, its end and what comes after included."""
        whole = self._with(chat, message)
        if whole.startswith(opened := self.prompt(chat)):
            return whole[len(opened) :]
        # The prompt opens a thought that a message without one does not have: the answer begins where any other would.
        mark = "⁂answer⁂"
        opening, found, _ = self._with(chat, Message("assistant", mark)).partition(mark)
        if not found or not whole.startswith(opening):
            raise TacitError(
                "this model's chat template writes past messages otherwise than new ones, so none can be imitated."
            )
        return whole[len(opening) :]

    @cached_property
    def knows_tools(self) -> bool:
        try:
            shown = self._render(PROBE, False, open_answer=True)
        except TacitError:
            return False
        return all(word in shown for word in ("summary", "probe", "probed", "answered"))

    @cached_property
    def knows_system(self) -> bool:
        try:
            return "instructed" in self._render(Chat((Message("system", "instructed"), Message("user", "go"))), False, True)
        except TacitError:
            return False

    def _with(self, chat: Chat, message: Message) -> str:
        return self._render(self._sayable(replace(chat, messages=(*chat.messages, message))), chat.thinking, open_answer=False)

    def _sayable(self, chat: Chat) -> Chat:
        """The conversation with what this template cannot say put into words."""
        messages = list(chat.messages)
        if chat.tools and not self.knows_tools:
            listed = SPOKEN_TOOLS.format(tools="\n".join(json.dumps(tool.schema()["function"]) for tool in chat.tools))
            if messages[0].role == "system":
                messages[0] = replace(messages[0], content=f"{messages[0].content}\n\n{listed}")
            else:
                messages.insert(0, Message("system", listed))
            messages = [_in_words(message) for message in messages]
            chat = replace(chat, tools=())
        if messages[0].role == "system" and not self.knows_system:
            first, second, *rest = messages
            messages = [replace(second, content=f"{first.content}\n\n{second.content}"), *rest]
        return replace(chat, messages=tuple(messages))

    def _render(self, chat: Chat, thinking: bool, open_answer: bool) -> str:
        if not self.tokenizer.chat_template:
            raise TacitError(
                "this model's tokenizer has no chat template, so it cannot be told a conversation; leave --chat out, or choose "
                "an instruct model."
            )
        tools = {"tools": [tool.schema() for tool in chat.tools]} if chat.tools else {}
        try:
            return self.tokenizer.apply_chat_template(
                chat.told(), add_generation_prompt=open_answer, tokenize=False, enable_thinking=thinking, **tools
            )
        except Exception as error:  # a template is a program of its maker's
            raise TacitError(f"this model's chat template refuses the conversation: {type(error).__name__}: {error}") from error


def _in_words(message: Message) -> Message:
    if message.call is not None:
        return Message("assistant", message.call.text())
    return replace(message, role="user") if message.role == "tool" else message
