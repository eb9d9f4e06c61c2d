"""Reading of a tokenizer's engine and its declared special tokens.

A tokenizer of transformers declares its EOS token, or that it has none. A bare tokenizer.json
cannot: its EOS is the only special token with a usual name for EOS, or unknown if there are
several.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine

from streampack.errors import ConfigError
from streampack.notices import is_first

logger = logging.getLogger(__name__)

# Usual names of these tokens. A name counts only if the tokenizer declares the token special.
_EOS_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<|end▁of▁sentence|>",
    "<EOS>",
)
_BOS_NAMES = (
    "<|begin_of_text|>",
    "<s>",
    "<bos>",
    "<｜begin▁of▁sentence｜>",
    "<|startoftext|>",
    "[BOS]",
    "<BOS>",
)
_PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<｜▁pad▁｜>", "<PAD>")


#: Classes of transformers 4 with a post-processor of their own: True if they add BOS without
#: "add_bos_token".
_OWN_PROCESSOR = {
    "CodeLlamaTokenizer": True,
    "CohereTokenizer": True,
    "GPTNeoXTokenizer": False,
    "GemmaTokenizer": True,
    "LlamaTokenizer": True,
}

#: Folder in which transformers saves templates other than the default one.
_MORE_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A private copy of a tokenizer's engine, and its special tokens.

    Attributes:
        engine: tokenizer of the tokenizers library, without truncation and padding.
        eos_id, bos_id, pad_id: ids, or None if the tokenizer does not declare them.
        likely_eos: special tokens with a usual name for EOS and their ids, for a tokenizer without
            a declared EOS. If there is one, `eos_id` is its id.
        before, after: ids that the tokenizer itself puts at the head and the end of a text.
        largest_id: largest id in the vocabulary, added tokens included.
        chat_template: Jinja template of the tokenizer, or None.
        tool_template: its other template for conversations with tools, or None.
    """

    engine: Engine
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    largest_id: int
    chat_template: str | None = None
    tool_template: str | None = None
    likely_eos: Mapping[str, int] = field(default_factory=dict)


def open_vocabulary(tokenizer: Any) -> Vocabulary:
    """Read any tokenizer that `load_tokenizer` accepts; raise `ConfigError` for others."""
    if isinstance(tokenizer, (str, Path)):
        path = _find_file(Path(tokenizer))
        return _describe(_read_engine(path), _settings_beside(path))
    if hasattr(tokenizer, "backend_tokenizer"):
        engine = tokenizer.backend_tokenizer
        settings = {f"{name}_token": getattr(tokenizer, f"{name}_token", None) for name in _KINDS}
        settings["chat_template"] = getattr(tokenizer, "chat_template", None)
    elif hasattr(tokenizer, "_mergeable_ranks"):  # true for a `tiktoken.Encoding`
        from streampack.tokenization.tiktoken import engine_of_tiktoken

        engine = engine_of_tiktoken(tokenizer)
        end = "<|endoftext|>"  # missing in nanochat's encodings
        has_end = end in tokenizer.special_tokens_set
        settings = {"eos_token": end if has_end else None, "bos_token": None}
    elif isinstance(tokenizer, Engine) or hasattr(tokenizer, "to_str"):
        engine, settings = tokenizer, {}
    elif hasattr(tokenizer, "convert_tokens_to_ids"):
        raise ConfigError(
            "tokenizer must be a fast tokenizer, but "
            f"{type(tokenizer).__name__} is a slow one of transformers, written in Python.",
            "Load it with `AutoTokenizer.from_pretrained(..., use_fast=True)`, or convert it and "
            "pass the path of its tokenizer.json.",
            setting="tokenizer",
        )
    else:
        raise ConfigError(
            "tokenizer must be a path or a tokenizer of a supported library, got "
            f"{type(tokenizer).__name__}.",
            "Pass the path of a tokenizer.json, a tokenizers.Tokenizer, a tiktoken.Encoding, or a "
            "fast tokenizer of transformers.",
            setting="tokenizer",
        )
    return _describe(_private_copy(engine), settings)


def _find_file(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return file
    fact = (
        f"The folder {path} holds no tokenizer.json."
        if path.is_dir()
        else f"There is no tokenizer file at {path}."
    )
    raise ConfigError(
        fact,
        "Pass the path of an existing tokenizer.json or of the folder that holds it, or load the "
        "tokenizer yourself and pass the object.",
        setting="tokenizer",
        path=str(path),
    )


def _read_engine(path: Path) -> Engine:
    try:
        return Engine.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"{path} is not a tokenizer of the tokenizers library ({error}).",
            "Pass a tokenizer.json that `tokenizer.save(path)` wrote.",
            setting="tokenizer",
            path=str(path),
        ) from error


def _settings_beside(path: Path) -> dict[str, Any]:
    """Return the settings in the files that usually accompany a tokenizer.json."""
    settings: dict[str, Any] = {}
    for name in ("generation_config.json", "special_tokens_map.json", "tokenizer_config.json"):
        file = path.with_name(name)
        if not file.is_file():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{file} is not valid JSON ({error}).",
                "Repair the file, or move tokenizer.json to another folder.",
                path=str(file),
            ) from error
        if isinstance(content, dict):
            declared = {key: value for key, value in content.items() if value is not None}
            settings = {**content, **settings, **declared}  # null stays if no file has a value
    files = {"default": path.with_name("chat_template.jinja")} | {
        file.stem: file for file in sorted(path.with_name(_MORE_TEMPLATES).glob("*.jinja"))
    }
    templates = {
        name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()
    }
    return settings | ({"chat_template": templates} if templates else {})


def _private_copy(engine: Any) -> Engine:
    try:
        copy = Engine.from_str(engine.to_str())
    except Exception as error:
        raise ConfigError(
            f"The tokenizer cannot be written as JSON ({error}).",
            "Use a tokenizer without components written in Python.",
            setting="tokenizer",
        ) from error
    copy.encode_special_tokens = bool(getattr(engine, "encode_special_tokens", False))
    return copy


def _whole_and_repeatable(engine: Engine) -> None:
    """Switch truncation and padding off, which would drop or add tokens silently.

    Raises:
        ConfigError: the tokenizer draws its merges.
    """
    engine.no_truncation()
    engine.no_padding()
    dropout = getattr(engine.model, "dropout", None)
    if dropout:
        raise ConfigError(
            f"The tokenizer's BPE dropout must be off, because ids have to be repeatable, got "
            f"{dropout}.",
            "Set `tokenizer.model.dropout = None`.",
            setting="tokenizer",
        )


_KINDS = {"eos": _EOS_NAMES, "bos": _BOS_NAMES, "pad": _PAD_NAMES}


def _describe(engine: Engine, settings: dict[str, Any]) -> Vocabulary:
    """Return the vocabulary of an engine that nobody else has."""
    padding = engine.padding
    _whole_and_repeatable(engine)
    special = {
        token.content: number
        for number, token in engine.get_added_tokens_decoder().items()
        if token.special
    }
    before, after = _added_ids(engine)
    ids: dict[str, int | None] = {}
    likely_eos: dict[str, int] = {}
    for kind, names in _KINDS.items():
        token = settings.get(f"{kind}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            ids[kind] = engine.token_to_id(str(token))
        elif kind != "eos":
            ids[kind] = next((special[name] for name in names if name in special), None)
            if kind == "bos" and "bos_token" in settings and ids[kind] not in before[:1]:
                ids[kind] = None  # null declares that there is no BOS
        elif type(settings.get("eos_token_id")) is int:  # a model's config may have a list
            ids[kind] = settings["eos_token_id"]
        elif len(after) == 1:
            ids[kind] = after[0]
        else:
            if "eos_token" not in settings:
                likely_eos = {name: special[name] for name in names if name in special}
            ids[kind] = None if len(likely_eos) != 1 else next(iter(likely_eos.values()))
    if ids["pad"] is None and isinstance(padding, dict):
        ids["pad"] = padding.get("pad_id")
    before, after = _by_class(settings, ids, before, after)
    largest = max(engine.get_vocab(with_added_tokens=True).values(), default=-1)
    return Vocabulary(
        engine,
        ids["eos"],
        ids["bos"],
        ids["pad"],
        before,
        after,
        largest,
        *_chat_templates(settings.get("chat_template")),
        likely_eos,
    )


def _added_ids(engine: Engine) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the post-processor puts before and after a text."""
    others = map(engine.id_to_token, range(256))  # a vocabulary may have no "a"
    for text in chain(["a"], (token for token in others if token)):
        try:
            whole = tuple(engine.encode(text).ids)
            plain = tuple(engine.encode(text, add_special_tokens=False).ids)
        except Exception:  # the library raises plain Exception for unknown words
            continue
        for at in range(len(whole) - len(plain) + 1) if plain else ():
            if whole[at : at + len(plain)] == plain:
                return whole[:at], whole[at + len(plain) :]
    return tuple(engine.encode("").ids), ()


def _by_class(
    settings: Mapping[str, Any],
    ids: Mapping[str, int | None],
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids before and after a text as transformers 4 decides them for a folder.

    Some of its classes replace the post-processor. Where that changes the ids, a warning says so,
    because transformers 5 uses the post-processor.
    """
    name = settings.get("tokenizer_class")
    if name is None and "add_bos_token" not in settings:
        return before, after
    begins = _OWN_PROCESSOR.get(str(name).removesuffix("Fast")) if name else False
    if begins is None:
        return before, after
    wanted = settings.get("add_bos_token"), settings.get("add_eos_token")
    has_bos = begins if wanted[0] is None else bool(wanted[0])
    replaced = (
        (ids["bos"],) if has_bos and ids["bos"] is not None else (),
        (ids["eos"],) if wanted[1] and ids["eos"] is not None else (),
    )
    if replaced != (before, after) and is_first(f"post-processor {settings}"):
        logger.warning(
            "The tokenizer.json puts the ids %s before a text and %s after it, but %s in "
            "tokenizer_config.json stands for %s and %s. These are used, as by transformers 4; "
            "transformers 5 uses the others. Tokenizer(path, bos=) chooses.",
            *map(list, (before, after)),
            f'"{name}"' if name else '"add_bos_token"',
            *map(list, replaced),
        )
    return replaced


def _chat_templates(templates: Any) -> tuple[str | None, str | None]:
    """Return a tokenizer's chat template, and its separate template for tools, or None each."""
    if isinstance(templates, list):
        templates = {item["name"]: item["template"] for item in templates}
    named = templates if isinstance(templates, dict) else {"default": templates}
    default, with_tools = (named.get(name) for name in ("default", "tool_use"))
    return (
        default if isinstance(default, str) else None,
        with_tools if isinstance(with_tools, str) else None,
    )
