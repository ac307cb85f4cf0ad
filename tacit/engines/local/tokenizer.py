"""Text to tokens and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.chat import Call, Chat, Message, Tool
from tacit.core.errors import TacitError

# Conversations in a model's own chat template, as text.
#
# What a template cannot say is said in words: where it knows no tools they are listed in the system message and calls are
# written as most models write them; where it knows no system message, that stands before the first user message.

TOOLS_AS_TEXT = """You can call these tools:
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
    def supports_tools(self) -> bool:
        try:
            shown = self._render(PROBE, False, open_answer=True)
        except TacitError:
            return False
        return all(word in shown for word in ("summary", "probe", "probed", "answered"))

    @cached_property
    def supports_system_prompt(self) -> bool:
        try:
            return "instructed" in self._render(Chat((Message("system", "instructed"), Message("user", "go"))), False, True)
        except TacitError:
            return False

    def _with(self, chat: Chat, message: Message) -> str:
        return self._render(self._sayable(replace(chat, messages=(*chat.messages, message))), chat.thinking, open_answer=False)

    def _sayable(self, chat: Chat) -> Chat:
        """The conversation with what this template cannot say put into words."""
        messages = list(chat.messages)
        if chat.tools and not self.supports_tools:
            listed = TOOLS_AS_TEXT.format(tools="\n".join(json.dumps(tool.schema()["function"]) for tool in chat.tools))
            if messages[0].role == "system":
                messages[0] = replace(messages[0], content=f"{messages[0].content}\n\n{listed}")
            else:
                messages.insert(0, Message("system", listed))
            messages = [_without_tool_roles(message) for message in messages]
            chat = replace(chat, tools=())
        if messages[0].role == "system" and not self.supports_system_prompt:
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


def _without_tool_roles(message: Message) -> Message:
    if message.call is not None:
        return Message("assistant", message.call.text())
    return replace(message, role="user") if message.role == "tool" else message


@dataclass(frozen=True, eq=False)
class TextCodec:
    """Text to tokens and back: one user message under the chat template where the tokenizer has one, else plain text; or a
    whole conversation under it.

    What a text says is data: a control token spelled out in it, in a note or on a web page, is read as its letters."""

    tokenizer: Any
    context_limit: int

    @property
    def end(self) -> int:
        """the token that ends a completion"""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.end if pad is None else int(pad)

    def encode_prompt(self, text: str) -> np.ndarray:
        return self.encode_prompts([text])[0]

    def encode_prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each as it would be alone; the tokenizer goes through several at once, on all CPUs."""
        if not texts:
            return []
        texts = [self.escape_control_tokens(text) for text in texts]
        if self.tokenizer.chat_template:
            # Some templates open a thought of their own unless told not to; agents here think, if at all, in their own tags.
            rendered = self.tokenizer.apply_chat_template(
                [[{"role": "user", "content": text}] for text in texts],
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,
            )
            return self._encode_all(rendered, add_special_tokens=False)
        # Some tokenizers close every text; a prompt that already ended has nothing to continue.
        return [
            tokens[:-1] if len(tokens) > 1 and tokens[-1] == self.end else tokens
            for tokens in self._encode_all(texts, add_special_tokens=True)
        ]

    def encode_completion(self, text: str) -> np.ndarray:
        return np.append(self._encode(self.escape_control_tokens(text), add_special_tokens=False), np.int64(self.end))

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer)

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self._encode(self.template.prompt(self._spelled(chat)), add_special_tokens=False)

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        """Up to the end token that the template closes a message with; with one, where it closes it otherwise."""
        (answer,) = self._spelled(Chat((answer,))).messages
        written = self.template.answer(self._spelled(chat), answer)
        tokens = self._encode(written, add_special_tokens=False)
        ends = np.flatnonzero(tokens == self.end)
        return tokens[: ends[0] + 1] if len(ends) else self.encode_completion(written.rstrip())

    def escape_control_tokens(self, text: str) -> str:
        """The same, with every control token that is written out in it parted by a space: `<|end|>` becomes `< |end|>`."""
        if not any(mark in text for mark in self._marks):  # far quicker than the pattern, and nearly always enough
            return text
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _spelled(self, chat: Chat) -> Chat:
        def message(told: Message) -> Message:
            call = told.call and Call(
                told.call.name, {k: self.escape_control_tokens(v) for k, v in told.call.arguments.items()}
            )
            return Message(told.role, self.escape_control_tokens(told.content), call)

        return replace(chat, messages=tuple(message(told) for told in chat.messages))

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True))))

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(token[:2] for token in self._tokens)

    @cached_property
    def _tokens(self) -> frozenset[str]:
        reserved = (token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        return frozenset((*self.tokenizer.all_special_tokens, *reserved))

    def decode(self, tokens: np.ndarray) -> str:
        ids = np.asarray(tokens).tolist()
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _encode(self, text: str, add_special_tokens: bool) -> np.ndarray:
        return self._encode_all([text], add_special_tokens)[0]

    def _encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[np.ndarray]:
        if self._bare is not None:
            found = self._bare.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
            return [np.asarray(one.ids, dtype=np.int64) for one in found]
        # Not verbose: whoever feeds the model refuses what is too long; others only count.
        encoded = self.tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return [np.asarray(ids, dtype=np.int64) for ids in encoded]

    @cached_property
    def _bare(self) -> Any:
        """The tokenizer itself, where it may be asked: what is around it takes half as long again, for masks and offsets that
        nobody reads here, and takes back what a file may have set of cutting and filling up."""
        own = getattr(self.tokenizer, "backend_tokenizer", None)
        return own if own is not None and own.truncation is None and own.padding is None else None


def make_codec(tokenizer: Any, config: Any) -> TextCodec:
    if tokenizer.eos_token_id is None:
        raise TacitError("this model's tokenizer has no end token (eos_token), so a completion could never end; set one.")
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    known = [int(limit) for limit in limits if limit and limit < 10**9]
    return TextCodec(tokenizer, min(known) if known else 2048)
