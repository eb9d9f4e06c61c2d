"""The attacks of the campaign by name, with what a case of each may take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tests.campaign.attack import MakeAttack
from tests.campaign.processes import attack_jobs, attack_loops
from tests.campaign.shards import KINDS, attack_shards
from tests.campaign.states import attack_growth, attack_states
from tests.campaign.values import attack_chats, attack_fields, attack_groups

__all__ = ["ATTACKS", "Limits"]


@dataclass(frozen=True)
class Limits:
    """An attack and its limits.

    Attributes:
        make: makes it.
        case_s: seconds that a case may take.
        memory: whether a case may claim 1 GiB only, in kernels that check every index.
    """

    make: MakeAttack
    case_s: float = 20.0
    memory: bool = True


ATTACKS: dict[str, Limits] = {
    **{f"shards-{kind}": Limits(partial(attack_shards, kind)) for kind in KINDS},
    "states": Limits(attack_states),
    "growth": Limits(attack_growth),
    "chats": Limits(attack_chats),
    "fields": Limits(attack_fields),
    "groups": Limits(attack_groups),
    "jobs": Limits(attack_jobs, case_s=180, memory=False),
    "loops": Limits(attack_loops, case_s=60, memory=False),
}
