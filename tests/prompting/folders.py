"""Model folders with tiny tokenizers, trained in a blink: one of each kind whose ways differ."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_CORPUS = ["The quick brown fox, 12 of them, said hello hello.\n\nUser system assistant ½ naïve 漢字 👍"] * 20

LLAMA_3_TEMPLATE = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

QWEN_TEMPLATE = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA_2_TEMPLATE = """{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}\
{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""


def write_folder(
    folder: Path, tokenizer: Tokenizer, template: str | None, config: dict[str, Any] | None = None
) -> Path:
    """Write the files that PromptFormat reads."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def byte_level(special: Sequence[str], added: Sequence[str | AddedToken] = ()) -> Tokenizer:
    """A GPT-2-like tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, special)
    tokenizer.add_tokens(list(added))
    return tokenizer


def llama_3_folder(folder: Path, template: str = LLAMA_3_TEMPLATE) -> Path:
    """A folder whose template writes the BOS that the tokenizer puts first as well."""
    bos = "<|begin_of_text|>"
    tokenizer = byte_level([bos, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return write_folder(folder, tokenizer, template, {"bos_token": bos, "eos_token": "<|eot_id|>"})


def qwen_folder(folder: Path, template: str = QWEN_TEMPLATE) -> Path:
    """A folder with a normalizer, tokens that are added but not special, and no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(r"""(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+""")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>", "<tool_call>")]
    )
    return write_folder(
        folder,
        tokenizer,
        template,
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False}},
    )


def llama_2_folder(folder: Path, template: str = LLAMA_2_TEMPLATE) -> Path:
    """A folder with a SentencePiece-like tokenizer: a space before every text, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _train(
        tokenizer, ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))], is_byte_level=False
    )
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are entries like others
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return write_folder(folder, tokenizer, template, {"bos_token": "<s>", "eos_token": "</s>"})


def _train(tokenizer: Tokenizer, special: Sequence[str], *, is_byte_level: bool = True) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if is_byte_level else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
