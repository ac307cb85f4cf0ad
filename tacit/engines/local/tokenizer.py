"""Text to tokens and back: chat templates and `TextCodec`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.chat import Call, Chat, Message, Tool
from tacit.core.errors import TacitError

TOOLS_AS_TEXT = """You can call these tools:
{tools}
To call one, write its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": NAME, "arguments": {{ARGUMENT: VALUE}}}}
</tool_call>"""
PROBE = Chat(
    (Message("user", "look"), Message("assistant", "", Call("probe", {"action": "probed"})), Message("tool", "answered")),
    (Tool("probe", "action", "summary"),),
)


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """Renders conversations with a model's chat template. Tools and system messages that it does not support become text."""

    tokenizer: Any

    def prompt(self, chat: Chat) -> str:
        """The conversation up to the start of the assistant's next message."""
        return self._render(self._adapt_to_template(chat), chat.thinking, open_answer=True)

    def answer(self, chat: Chat, message: Message) -> str:
        """The assistant's next message as rendered, with its end token and any text the template adds after it."""
        whole = self._render_with(chat, message)
        if whole.startswith(opened := self.prompt(chat)):
            return whole[len(opened) :]
        # The generation prompt opens a thinking block that this message lacks, so locate the start of an assistant message.
        mark = "⁂answer⁂"
        opening, marked, _ = self._render_with(chat, Message("assistant", mark)).partition(mark)
        if not marked or not whole.startswith(opening):
            raise TacitError(
                "this model's chat template renders past messages differently from new ones, so they cannot be imitated."
            )
        return whole[len(opening) :]

    @cached_property
    def supports_tools(self) -> bool:
        try:
            text = self._render(PROBE, False, open_answer=True)
        except TacitError:
            return False
        return all(word in text for word in ("summary", "probe", "probed", "answered"))

    @cached_property
    def supports_system_prompt(self) -> bool:
        try:
            return "instructed" in self._render(Chat((Message("system", "instructed"), Message("user", "go"))), False, True)
        except TacitError:
            return False

    def _render_with(self, chat: Chat, message: Message) -> str:
        return self._render(
            self._adapt_to_template(replace(chat, messages=(*chat.messages, message))), chat.thinking, open_answer=False
        )

    def _adapt_to_template(self, chat: Chat) -> Chat:
        """The conversation with unsupported tools and system messages turned into text."""
        messages = list(chat.messages)
        if chat.tools and not self.supports_tools:
            listed = TOOLS_AS_TEXT.format(tools="\n".join(json.dumps(tool.schema()["function"]) for tool in chat.tools))
            if messages[0].role == "system":
                messages[0] = replace(messages[0], content=f"{messages[0].content}\n\n{listed}")
            else:
                messages.insert(0, Message("system", listed))
            messages = [m if m.call is None else Message("assistant", m.call.text()) for m in messages]
            messages = [replace(m, role="user") if m.role == "tool" else m for m in messages]
            chat = replace(chat, tools=())
        if messages[0].role == "system" and not self.supports_system_prompt:
            first, second, *rest = messages
            messages = [replace(second, content=f"{first.content}\n\n{second.content}"), *rest]
        return replace(chat, messages=tuple(messages))

    def _render(self, chat: Chat, thinking: bool, open_answer: bool) -> str:
        if not self.tokenizer.chat_template:
            raise TacitError(
                "this model's tokenizer has no chat template, so conversations cannot be encoded; remove --chat, or use an "
                "instruction-tuned model."
            )
        tools = {"tools": [tool.schema() for tool in chat.tools]} if chat.tools else {}
        try:
            return self.tokenizer.apply_chat_template(
                chat.to_dicts(), add_generation_prompt=open_answer, tokenize=False, enable_thinking=thinking, **tools
            )
        except Exception as error:  # a template is arbitrary code
            raise TacitError(f"this model's chat template refuses the conversation: {type(error).__name__}: {error}") from error


@dataclass(eq=False, repr=False)
class TextCodec:
    """Text to tokens and back. A text prompt is one user message if the tokenizer has a chat template, else plain text.

    Control tokens spelled out in a text (in a note, on a web page) are escaped, so that data cannot act as markup."""

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
        """`encode_prompt` of each text, in parallel."""
        if not texts:
            return []
        texts = [self.escape_control_tokens(text) for text in texts]
        if self.tokenizer.chat_template:
            # Some templates open a thinking block by default; agents use their own tags.
            rendered = self.tokenizer.apply_chat_template(
                [[{"role": "user", "content": text}] for text in texts],
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,
            )
            return self.encode_all(rendered, add_special_tokens=False)
        # Some tokenizers append an end token; a prompt must not end with it.
        return [
            tokens[:-1] if len(tokens) > 1 and tokens[-1] == self.end else tokens
            for tokens in self.encode_all(texts, add_special_tokens=True)
        ]

    def encode_completion(self, text: str) -> np.ndarray:
        return np.append(self.encode_all([self.escape_control_tokens(text)], False)[0], np.int64(self.end))

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer)

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return self.encode_all([self.template.prompt(self._escape_chat(chat))], add_special_tokens=False)[0]

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        """The answer up to the template's end token; if the template has none, the tokenizer's is appended."""
        (answer,) = self._escape_chat(Chat((answer,))).messages
        written = self.template.answer(self._escape_chat(chat), answer)
        tokens = self.encode_all([written], add_special_tokens=False)[0]
        ends = np.flatnonzero(tokens == self.end)
        return tokens[: ends[0] + 1] if len(ends) else self.encode_completion(written.rstrip())

    def escape_control_tokens(self, text: str) -> str:
        """Escape every control token in the text with a space: `<|end|>` becomes `< |end|>`."""
        prefixes, pattern = self._control_tokens
        if not any(prefix in text for prefix in prefixes):  # much faster than the pattern
            return text
        return pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _escape_chat(self, chat: Chat) -> Chat:
        def escape_value(value: Any) -> Any:
            """All strings of a JSON value, such as a tool's arguments."""
            if isinstance(value, str):
                return self.escape_control_tokens(value)
            if isinstance(value, Mapping):
                return {escape_value(key): escape_value(inner) for key, inner in value.items()}
            return [escape_value(inner) for inner in value] if isinstance(value, list | tuple) else value

        def escape(message: Message) -> Message:
            call = message.call and Call(escape_value(message.call.name), escape_value(message.call.arguments))
            return Message(message.role, self.escape_control_tokens(message.content), call)

        return replace(chat, messages=tuple(escape(message) for message in chat.messages))

    @cached_property
    def _control_tokens(self) -> tuple[frozenset[str], re.Pattern[str]]:
        """(first two characters of the control tokens, pattern that matches any of them)"""
        reserved = (token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        tokens = frozenset((*self.tokenizer.all_special_tokens, *reserved))
        pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
        return frozenset(token[:2] for token in tokens), pattern

    def decode(self, tokens: np.ndarray) -> str:
        ids = np.asarray(tokens).tolist()
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[np.ndarray]:
        if self._rust_tokenizer is not None:
            encodings = self._rust_tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
            return [np.asarray(one.ids, dtype=np.int64) for one in encodings]
        # verbose=False: no warning about long texts, which are refused elsewhere.
        encoded = self.tokenizer(list(texts), add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return [np.asarray(ids, dtype=np.int64) for ids in encoded]

    @cached_property
    def _rust_tokenizer(self) -> Any:
        """The Rust tokenizer, which is faster than the Python wrapper; None if it truncates or pads."""
        rust = getattr(self.tokenizer, "backend_tokenizer", None)
        return rust if rust is not None and rust.truncation is None and rust.padding is None else None


def make_codec(tokenizer: Any, config: Any) -> TextCodec:
    if tokenizer.eos_token_id is None:
        raise TacitError("this model's tokenizer has no end token (eos_token), so completions would never end; set one.")
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    finite = [int(limit) for limit in limits if limit and limit < 10**9]
    return TextCodec(tokenizer, min(finite) if finite else 2048)
