"""Learnt text of every kind of conversation under every template of `chat_templates`.

Each cell is written out: the text of the document, with « and » around the parts with loss, or the
cause of a refusal. A table has a row for each template and a column for each of `KINDS`.
"""

# ruff: noqa: E501  a text is a line

from __future__ import annotations

from typing import Any

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"role": "tool", "content": "R"}


def asked(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str | None, thought: str | None = None, call: bool = False) -> dict[str, Any]:
    """A message of the assistant; its thoughts have the names that several models give them."""
    thoughts = {} if thought is None else {"reasoning_content": thought, "thinking": thought}
    calls = {"tool_calls": [CALL]} if call else {}
    return {"role": "assistant", "content": content, **thoughts, **calls}


KINDS: dict[str, list[dict[str, Any]]] = {
    "one answer": [asked("Q1"), said("A1")],
    "two answers": [
        {"role": "system", "content": "S"},
        asked("Q1"),
        said("A1"),
        asked("Q2"),
        said("A2"),
    ],
    "thoughts": [asked("Q1"), said("A1", "T1"), asked("Q2"), said("A2", "T2")],
    "thoughts in content": [
        asked("Q1"),
        said("<think>\nT1\n</think>\n\nA1"),
        asked("Q2"),
        said("<think>\nT2\n</think>\n\nA2"),
    ],
    "a call": [asked("Q1"), said(None, call=True), RESULT, said("A1")],
    "words and a call": [
        asked("Q1"),
        said("W", call=True),
        RESULT,
        said("A1"),
        asked("Q2"),
        said("A2"),
    ],
    "thoughts and a call": [asked("Q1"), said(None, "T1", call=True), RESULT, said("A1", "T2")],
}


class Refused(str):
    """A part of the reason."""


NO_THOUGHTS = Refused("has thoughts in message 1 that the template leaves out")
NO_CALLS = Refused("has calls of tools in message 1 that the template leaves out")
NO_WORDS = Refused("has a message 1 of the assistant that the template leaves out")
REWRITTEN = Refused("the template rewrites or leaves out earlier turns")
REFUSED = Refused("cannot be rendered by the chat template")
NOT_PROMPTED = Refused("does not begin with the template's generation prompt")

#: A text with marks, the learnt text of each turn, or the cause of a refusal.
Cell = str | list[str]

WHOLE: dict[str, list[Cell]] = {
    "stripped": [
        "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nA1<|im_end|>»\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n«A1<|im_end|>»\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nA2<|im_end|>»\n",
        NO_THOUGHTS,
        NO_THOUGHTS,
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n«<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\n<result>R</result><|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nA1<|im_end|>»\n',
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n«W<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\n<result>R</result><|im_end|>\n<|im_start|>assistant\n«A1<|im_end|>»\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nA2<|im_end|>»\n',
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n«<think>\nT1\n</think>\n\n<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\n<result>R</result><|im_end|>\n<|im_start|>assistant\n«<think>\nT2\n</think>\n\nA1<|im_end|>»\n',
    ],
    "opened": [
        "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think></think>«A1<|im_end|>»\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think></think>«A1<|im_end|>»\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n<think></think>«A2<|im_end|>»\n",
        NO_THOUGHTS,
        "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think></think>«<think>\nT1\n</think>\n\nA1<|im_end|>»\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n<think></think>«<think>\nT2\n</think>\n\nA2<|im_end|>»\n",
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think></think>«<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n<think></think>«A1<|im_end|>»\n',
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think></think>«W<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n<think></think>«A1<|im_end|>»\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n<think></think>«A2<|im_end|>»\n',
        '<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think>\n«T1\n</think>\n<call>add{"a": 1}</call><|im_end|>»\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n<think>\n«T2\n</think>\nA1<|im_end|>»\n',
    ],
    "channels": [
        "<|start|>system<|message|>It is 2025-07-26.<|end|><|start|>user<|message|>Q1<|end|><|start|>assistant«<|channel|>final<|message|>A1<|return|>»",
        "<|start|>system<|message|>It is 2025-07-26.<|end|><|start|>system<|message|>S<|end|><|start|>user<|message|>Q1<|end|><|start|>assistant«<|channel|>final<|message|>A1<|end|>»<|start|>user<|message|>Q2<|end|><|start|>assistant«<|channel|>final<|message|>A2<|return|>»",
        NO_THOUGHTS,
        "<|start|>system<|message|>It is 2025-07-26.<|end|><|start|>user<|message|>Q1<|end|><|start|>assistant«<|channel|>final<|message|><think>\nT1\n</think>\n\nA1<|end|>»<|start|>user<|message|>Q2<|end|><|start|>assistant«<|channel|>final<|message|><think>\nT2\n</think>\n\nA2<|return|>»",
        '<|start|>system<|message|>It is 2025-07-26.<|end|><|start|>user<|message|>Q1<|end|><|start|>assistant« to=add<|channel|>commentary<|message|>{"a": 1}<|call|>»<|start|>tool<|message|>R<|end|><|start|>assistant«<|channel|>final<|message|>A1<|return|>»',
        NO_WORDS,
        NO_THOUGHTS,
    ],
    "dated": [
        "<s>[SYS]It is 26 July 2025.[/SYS][INST]Q1[/INST]«A1</s>»",
        "<s>[SYS]S[/SYS][INST]Q1[/INST]«A1</s>»[INST]Q2[/INST]«A2</s>»",
        NO_THOUGHTS,
        "<s>[SYS]It is 26 July 2025.[/SYS][INST]Q1[/INST]«<think>\nT1\n</think>\n\nA1</s>»[INST]Q2[/INST]«<think>\nT2\n</think>\n\nA2</s>»",
        REFUSED,
        REFUSED,
        REFUSED,
    ],
    "dropped": [
        "<s><|user|>Q1<|assistant|>«A1</s>»",
        "<s>S<|user|>Q1<|assistant|>«A1</s>»<|user|>Q2<|assistant|>«A2</s>»",
        NO_THOUGHTS,
        NO_THOUGHTS,
        '<s><|user|>Q1<|assistant|>«<|call|>add\n{"a": 1}</s>»<|tool|>R<|assistant|>«A1</s>»',
        '<s><|user|>Q1<|assistant|>«W<|call|>add\n{"a": 1}</s>»<|tool|>R<|assistant|>«A1</s>»<|user|>Q2<|assistant|>«A2</s>»',
        NO_THOUGHTS,
    ],
    "final-eos": [
        "<|user|>\nQ1<|end|>\n<|assistant|>\n«A1<|end|>\n</s>»",
        "<|system|>\nS<|end|>\n<|user|>\nQ1<|end|>\n<|assistant|>\n«A1<|end|>»\n<|user|>\nQ2<|end|>\n<|assistant|>\n«A2<|end|>\n</s>»",
        NO_THOUGHTS,
        "<|user|>\nQ1<|end|>\n<|assistant|>\n«<think>\nT1\n</think>\n\nA1<|end|>»\n<|user|>\nQ2<|end|>\n<|assistant|>\n«<think>\nT2\n</think>\n\nA2<|end|>\n</s>»",
        NO_CALLS,
        NO_CALLS,
        NO_CALLS,
    ],
    "moving-system": [
        "<s>[INST] Q1[/INST] «A1</s>»",
        REWRITTEN,
        NO_THOUGHTS,
        "<s>[INST] Q1[/INST] «<think>\nT1\n</think>\n\nA1</s>»[INST] Q2[/INST] «<think>\nT2\n</think>\n\nA2</s>»",
        '<s>[INST] Q1[/INST]«[CALLS] [{"name": "add", "arguments": {"a": 1}}]</s>»[RESULT]R[/RESULT] «A1</s>»',
        NO_WORDS,
        NO_THOUGHTS,
    ],
    "merged-system": [
        "<s><|turn|>user\nQ1<|end|>\n<|turn|>model\n«A1<|end|>»\n",
        "<s><|turn|>user\nS\n\nQ1<|end|>\n<|turn|>model\n«A1<|end|>»\n<|turn|>user\nQ2<|end|>\n<|turn|>model\n«A2<|end|>»\n",
        NO_THOUGHTS,
        "<s><|turn|>user\nQ1<|end|>\n<|turn|>model\n«<think>\nT1\n</think>\n\nA1<|end|>»\n<|turn|>user\nQ2<|end|>\n<|turn|>model\n«<think>\nT2\n</think>\n\nA2<|end|>»\n",
        REFUSED,
        REFUSED,
        REFUSED,
    ],
    "separated": [
        "### Instruction:\nQ1\n\n### Response:\n«A1</s>»",
        "S\n\n### Instruction:\nQ1\n\n### Response:\n«A1</s>»\n\n### Instruction:\nQ2\n\n### Response:\n«A2</s>»",
        NO_THOUGHTS,
        "### Instruction:\nQ1\n\n### Response:\n«<think>\nT1\n</think>\n\nA1</s>»\n\n### Instruction:\nQ2\n\n### Response:\n«<think>\nT2\n</think>\n\nA2</s>»",
        NO_CALLS,
        NO_CALLS,
        NO_CALLS,
    ],
    "open-ended": [
        "<s><|user|>\nQ1<|assistant|>«\n<think></think>\nA1»",
        "<s><|system|>\nS<|user|>\nQ1<|assistant|>«\n<think></think>\nA1<|user|>»\nQ2<|assistant|>«\n<think></think>\nA2»",
        NO_THOUGHTS,
        "<s><|user|>\nQ1<|assistant|>«\n<think></think>\n<think>\nT1\n</think>\n\nA1<|user|>»\nQ2<|assistant|>«\n<think></think>\n<think>\nT2\n</think>\n\nA2»",
        '<s><|user|>\nQ1<|assistant|>«\n<think></think>\n<call>add{"a": 1}</call><|tool|>»\nR<|assistant|>«\n<think></think>\nA1»',
        '<s><|user|>\nQ1<|assistant|>«\n<think></think>\nW<call>add{"a": 1}</call><|tool|>»\nR<|assistant|>«\n<think></think>\nA1<|user|>»\nQ2<|assistant|>«\n<think></think>\nA2»',
        '<s><|user|>\nQ1<|assistant|>«\n<think>T1</think>\n<call>add{"a": 1}</call><|tool|>»\nR<|assistant|>«\n<think>T2</think>\nA1»',
    ],
    "call-or-content": [
        "<s><|head|>user<|/head|>\n\nQ1<|eot_id|><|head|>assistant<|/head|>\n\n«A1<|eot_id|>»",
        "<s><|head|>system<|/head|>\n\nS<|eot_id|><|head|>user<|/head|>\n\nQ1<|eot_id|><|head|>assistant<|/head|>\n\n«A1<|eot_id|>»<|head|>user<|/head|>\n\nQ2<|eot_id|><|head|>assistant<|/head|>\n\n«A2<|eot_id|>»",
        NO_THOUGHTS,
        "<s><|head|>user<|/head|>\n\nQ1<|eot_id|><|head|>assistant<|/head|>\n\n«<think>\nT1\n</think>\n\nA1<|eot_id|>»<|head|>user<|/head|>\n\nQ2<|eot_id|><|head|>assistant<|/head|>\n\n«<think>\nT2\n</think>\n\nA2<|eot_id|>»",
        '<s><|head|>user<|/head|>\n\nQ1<|eot_id|><|head|>assistant<|/head|>\n\n«{"name": "add", "parameters": {"a": 1}}<|eot_id|>»<|head|>ipython<|/head|>\n\nR<|eot_id|><|head|>assistant<|/head|>\n\n«A1<|eot_id|>»',
        NO_WORDS,
        NO_THOUGHTS,
    ],
}
#: Learnt text of each turn by itself.
EACH: dict[str, list[Cell]] = {
    "stripped": [
        ["<think>\n\n</think>\n\nA1<|im_end|>"],
        ["<think>\n\n</think>\n\nA1<|im_end|>", "<think>\n\n</think>\n\nA2<|im_end|>"],
        ["<think>\nT1\n</think>\n\nA1<|im_end|>", "<think>\nT2\n</think>\n\nA2<|im_end|>"],
        ["<think>\nT1\n</think>\n\nA1<|im_end|>", "<think>\nT2\n</think>\n\nA2<|im_end|>"],
        [
            '<think>\n\n</think>\n\n<call>add{"a": 1}</call><|im_end|>',
            "<think>\n\n</think>\n\nA1<|im_end|>",
        ],
        [
            '<think>\n\n</think>\n\nW<call>add{"a": 1}</call><|im_end|>',
            "<think>\n\n</think>\n\nA1<|im_end|>",
            "<think>\n\n</think>\n\nA2<|im_end|>",
        ],
        [
            '<think>\nT1\n</think>\n\n<call>add{"a": 1}</call><|im_end|>',
            "<think>\nT2\n</think>\n\nA1<|im_end|>",
        ],
    ],
    "opened": [
        NOT_PROMPTED,
        NOT_PROMPTED,
        ["T1\n</think>\nA1<|im_end|>", "T2\n</think>\nA2<|im_end|>"],
        NOT_PROMPTED,
        NOT_PROMPTED,
        NOT_PROMPTED,
        ['T1\n</think>\n<call>add{"a": 1}</call><|im_end|>', "T2\n</think>\nA1<|im_end|>"],
    ],
    "channels": [
        ["<|channel|>final<|message|>A1<|return|>"],
        ["<|channel|>final<|message|>A1<|return|>", "<|channel|>final<|message|>A2<|return|>"],
        [
            "<|channel|>analysis<|message|>T1<|end|><|start|>assistant<|channel|>final<|message|>A1<|return|>",
            "<|channel|>analysis<|message|>T2<|end|><|start|>assistant<|channel|>final<|message|>A2<|return|>",
        ],
        [
            "<|channel|>final<|message|><think>\nT1\n</think>\n\nA1<|return|>",
            "<|channel|>final<|message|><think>\nT2\n</think>\n\nA2<|return|>",
        ],
        [
            ' to=add<|channel|>commentary<|message|>{"a": 1}<|call|>',
            "<|channel|>final<|message|>A1<|return|>",
        ],
        NO_WORDS,
        [
            '<|channel|>analysis<|message|>T1<|end|><|start|>assistant to=add<|channel|>commentary<|message|>{"a": 1}<|call|>',
            "<|channel|>analysis<|message|>T2<|end|><|start|>assistant<|channel|>final<|message|>A1<|return|>",
        ],
    ],
    "dated": [
        ["A1</s>"],
        ["A1</s>", "A2</s>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1</s>", "<think>\nT2\n</think>\n\nA2</s>"],
        REFUSED,
        REFUSED,
        REFUSED,
    ],
    "dropped": [
        NOT_PROMPTED,
        NOT_PROMPTED,
        NO_THOUGHTS,
        NO_THOUGHTS,
        NOT_PROMPTED,
        NOT_PROMPTED,
        NO_THOUGHTS,
    ],
    "final-eos": [
        ["A1<|end|>\n</s>"],
        ["A1<|end|>\n</s>", "A2<|end|>\n</s>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1<|end|>\n</s>", "<think>\nT2\n</think>\n\nA2<|end|>\n</s>"],
        NO_CALLS,
        NO_CALLS,
        NO_CALLS,
    ],
    "moving-system": [
        ["A1</s>"],
        ["A1</s>", "A2</s>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1</s>", "<think>\nT2\n</think>\n\nA2</s>"],
        ['[CALLS] [{"name": "add", "arguments": {"a": 1}}]</s>', "A1</s>"],
        NO_WORDS,
        NO_THOUGHTS,
    ],
    "merged-system": [
        ["A1<|end|>"],
        ["A1<|end|>", "A2<|end|>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1<|end|>", "<think>\nT2\n</think>\n\nA2<|end|>"],
        REFUSED,
        REFUSED,
        REFUSED,
    ],
    "separated": [
        ["A1</s>"],
        ["A1</s>", "A2</s>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1</s>", "<think>\nT2\n</think>\n\nA2</s>"],
        NO_CALLS,
        NO_CALLS,
        NO_CALLS,
    ],
    "open-ended": [
        ["\n<think></think>\nA1"],
        ["\n<think></think>\nA1<|user|>", "\n<think></think>\nA2"],
        ["\n<think>T1</think>\nA1", "\n<think>T2</think>\nA2"],
        [
            "\n<think></think>\n<think>\nT1\n</think>\n\nA1<|user|>",
            "\n<think></think>\n<think>\nT2\n</think>\n\nA2",
        ],
        ['\n<think></think>\n<call>add{"a": 1}</call><|tool|>', "\n<think></think>\nA1"],
        [
            '\n<think></think>\nW<call>add{"a": 1}</call><|tool|>',
            "\n<think></think>\nA1<|user|>",
            "\n<think></think>\nA2",
        ],
        ['\n<think>T1</think>\n<call>add{"a": 1}</call><|tool|>', "\n<think>T2</think>\nA1"],
    ],
    "call-or-content": [
        ["A1<|eot_id|>"],
        ["A1<|eot_id|>", "A2<|eot_id|>"],
        NO_THOUGHTS,
        ["<think>\nT1\n</think>\n\nA1<|eot_id|>", "<think>\nT2\n</think>\n\nA2<|eot_id|>"],
        ['{"name": "add", "parameters": {"a": 1}}<|eot_id|>', "A1<|eot_id|>"],
        NO_WORDS,
        NO_THOUGHTS,
    ],
}
