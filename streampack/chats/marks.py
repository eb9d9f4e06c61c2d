"""Marks in messages and records that exclude turns from the loss.

Trainers have different names for the same mark. Those in a message decide whether its turn is
learnt. Marks beside the messages and labels of unwanted answers (KTO) are refused if they exclude a
conversation, unless a document field is declared for them, which the training loop reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from streampack.sources.records import BrokenDocumentError

#: Marks that are 0 or false in a message to exclude its turn.
LEARNT = (
    "weight",  # OpenAI, Mistral
    "train",  # axolotl
    "loss",  # ms-swift, XTuner
    "training",  # axolotl
    "trainable",  # Tinker
    "loss_weight",  # LLaMA-Factory
    "loss_mask",  # verl
    "loss_scale",  # ms-swift
    "step_loss_mask",  # slime
)
#: The mark that is true in a message to exclude its turn (torchtune).
MASKED = "masked"
#: Fields with the parts of a turn that are learnt (axolotl).
DETAILS = ("train_detail", "training_detail")
#: A mark with opposite meanings in different data.
AMBIGUOUS = "mask"
MARKS = frozenset((*LEARNT, MASKED, *DETAILS, AMBIGUOUS))
#: Fields with false or 0 for an unwanted answer (KTO): TRL and ms-swift, LLaMA-Factory.
LABELS = ("label", "kto_tag")
#: Every field that is checked beside a conversation.
BESIDE = (*LEARNT, MASKED, *LABELS)

#: Types of numbers in records without scalars of numpy.
NUMBER = (int, float, Decimal)
_WORDS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}


def is_learnt(message: Mapping[str, Any], role: str, name: str) -> bool:
    """Return False if a mark excludes the turn of the message.

    Raises:
        BrokenDocumentError: a mark is neither 0 nor 1, applies to a part of the turn, may mean
            either, or includes the turn of another role than the assistant.
    """
    marks = [mark for mark in (*LEARNT, MASKED) if message.get(mark) is not None]
    values = [_is_learnt(message[mark], mark, role, name) for mark in marks]  # checks every one
    learnt = all(values)
    answers = role == "assistant"
    if answers and isinstance(message.get(AMBIGUOUS), NUMBER):
        raise BrokenDocumentError(
            f'has a "{AMBIGUOUS}" in {name}, which has opposite meanings in different trainers; '
            'write "train" with true or false instead'
        )
    details = [message[mark] for mark in DETAILS if message.get(mark) is not None]
    if not details or not learnt:
        return learnt
    if any(map(bool, details)):
        raise BrokenDocumentError(
            f'has a "train_detail" in {name}, which marks parts of a turn; mark the whole turn '
            'with "train", or pass token ids with labels'
        )
    return not answers or bool(message.get("train") or message.get("training"))


def _is_learnt(value: Any, mark: str, role: str, name: str) -> bool:
    if not isinstance(value, NUMBER) or value not in (0, 1):
        raise BrokenDocumentError(
            f'has the value {value!r:.40} of "{mark}" in {name}; a turn is learnt (1, true) or not '
            "(0, false), and turns have no other weights"
        )
    learnt = bool(value) != (mark == MASKED)
    if learnt and role != "assistant" and mark != "step_loss_mask":  # slime never learns others
        raise BrokenDocumentError(
            f'has the value {value!r} of "{mark}" in {name}, of the role {role}; only the '
            "assistant's turns are learnt"
        )
    return learnt


def refuse_unlearnt(record: Mapping[str, Any], declared: Collection[str]) -> None:
    """Raise `BrokenDocumentError` if a field beside a conversation excludes it from the loss.

    Args:
        record: the record.
        declared: names of the document fields.
    """
    name = excluding_field(record, declared)
    if name is None:
        return
    value = record[name]
    if isinstance(value, list):
        raise BrokenDocumentError(
            f'has a list in "{name}" beside its messages, and a turn that it excludes would be '
            'learnt; write "train": false into that message'
        )
    unwanted = ", as unwanted answers have (KTO)," if name in LABELS else ""
    raise BrokenDocumentError(
        f'has a "{name}" of {value!r:.20}{unwanted} beside its conversation, which would be learnt '
        "like the others; leave it out, or, to have the value in batches, pass "
        f'document_fields={{"{name}": "{_type(value)}"}}'
    )


def excluding_field(record: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Return a field beside a conversation that excludes it, or some of its turns, from the loss.

    A list excludes turns if it has a value for each message; others may be masks of tokens.
    """
    values = [value for value in record.values() if isinstance(value, list) and value]
    lengths = {len(value) for value in values if isinstance(value[0], Mapping)}
    for name in BESIDE:
        value = record.get(name)
        if value is None or name in declared:
            continue
        if isinstance(value, list):
            if len(value) in lengths and any(_excludes(name, each) for each in value):
                return name
        elif _excludes(name, value):
            return name
    return None


def _excludes(name: str, value: Any) -> bool:
    """Return True if the value of a field beside a conversation excludes it from the loss."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    if not isinstance(value, NUMBER):
        return False
    if name == MASKED:
        return value == 1
    return value <= 0 if name in LABELS else value == 0


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "int64", str: "text"}.get(type(value), "float32")
