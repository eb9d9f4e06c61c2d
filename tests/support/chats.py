"""Chat templates in the styles of well-known models, tokenizers for them, and conversations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

#: The same text, with the assistant's part marked as transformers has it.
CHATML_MARKED = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}
{{- message['content'] + '<|im_end|>' }}
{%- endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

#: No generation prompt, and roles that must alternate.
MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}
{{- ' ' + message['content'] + eos_token }}
{%- endif %}
{%- endfor %}"""

#: A header that is no generation prompt, and nothing that closes a turn.
HEADERS = """{% for message in messages %}
{{- '### ' + message['role'] + ':\\n' + message['content'] + '\\n\\n' }}
{%- endfor %}"""

#: The next turn's token closes a turn.
OPEN_ENDED = """{{ bos_token }}{% for message in messages %}
{{- '<|' + message['role'] + '|>\\n' + message['content'] }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

#: Thoughts are left out of all turns but the last, which always has room for them.
THINKING = """{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- set answer = message['content'].split('</think>')[-1] | trim %}
{%- if loop.last and '</think>' in message['content'] %}
{{- message['content'] }}
{%- elif loop.last %}
{{- '<think>\\n\\n</think>\\n\\n' + answer }}
{%- else %}
{{- answer }}
{%- endif %}
{%- else %}
{{- message['content'] }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]", "<|user|>",
    "<|assistant|>", "<|system|>",
)  # fmt: skip


def bpe_tokenizer(trim_offsets: bool = False, *, two_ends: bool = False) -> Tokenizer:
    """Byte-level BPE with merges, among them of white space, as large models have it.

    With `two_ends`, "</s>" is special too, so that an EOS has to be named.
    """
    from tokenizers import processors

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = Path(__file__).read_text() + "\n\n\n hello world, the quick brown fox\n\n  " * 20
    tokenizer.train_from_iterator([text, text.replace("\n", "\n\n")], trainer)
    written = json.loads(tokenizer.to_str())
    for token in written["added_tokens"]:
        token["special"] = two_ends or token["content"] != "</s>"
    return Tokenizer.from_str(json.dumps(written))


def sentencepiece_like_tokenizer() -> Tokenizer:
    """Spaces become part of words and text is normalized, as in Llama 2 and T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    alphabet = "".join(map(chr, range(33, 127)))
    tokenizer.train_from_iterator([Path(__file__).read_text(), " ".join(alphabet)], trainer)
    return tokenizer


def with_template(
    tokenizer: Tokenizer, template: str, eos: str = "<|endoftext|>", bos: str | None = None
) -> Any:
    """A fast tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos)
    fast.chat_template = template
    return fast


def messages(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """A user and the assistant in turn."""
    said = [
        {"role": ("user", "assistant")[i % 2], "content": content}
        for i, content in enumerate(contents)
    ]
    return said if system is None else [{"role": "system", "content": system}, *said]


def write_lines(path: Path, records: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)
