"""Chat templates of several kinds, and a byte tokenizer with one."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""like SmolLM2: roles and texts, no tools"""

TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}"
    "{%- endif %}{{- '# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}"
    "{{- '\n</tools><|im_end|>\n' }}{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
    '{%- for call in message.tool_calls %}{{- \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' '
    "+ (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + message.content "
    "+ '\n</tool_response><|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{# thought #}{%- endif %}"
)
"""like Qwen2.5: with tools"""

THINKING = TOOLS.replace(
    "{# thought #}",
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}",
)
"""like Qwen3: without thinking, an empty thought is inserted; past messages have none"""

NO_SYSTEM = (
    "{% for message in messages %}{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""like Gemma: two roles"""

FUNCTIONS = TOOLS.replace(
    '{{- \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' '
    "+ (call.function.arguments | tojson) + '}\n</tool_call>' }}",
    "{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}{%- for key, value in call.function.arguments.items() %}"
    "{{- '<parameter=' + key + '>\n' + value + '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}",
)
"""tool calls in the XML format of Qwen-Coder"""

HERE = Path(__file__).parent / "chat_templates"
REAL = {file.stem: file.read_text(encoding="utf-8") for file in sorted(HERE.glob("*.jinja"))}
"""verbatim from SmolLM2-135M-Instruct and Qwen2.5-Coder-1.5B-Instruct (both Apache-2.0)"""
ALL = {**REAL, "chatml": CHATML, "tools": TOOLS, "thinking": THINKING, "no-system": NO_SYSTEM, "functions": FUNCTIONS}


def talking_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """One token per byte, plus the tokens that begin and end a message."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<|im_end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|pad|>"]})
    fast.chat_template = template
    return fast


def talking_model(directory, template: str, context: int = 4096) -> str:
    """A saved random Llama of a few thousand parameters with a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = talking_tokenizer(template)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)
