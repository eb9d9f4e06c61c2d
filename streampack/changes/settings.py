"""Resume with changed settings: the remainder of each lane's last plan is replanned.

Steps, for each lane:
  1. Restore the lane under the settings its state was saved with.
  2. Remove the rows of delivered batches from the plan of the current round. Tokens of a document
     outside these rows remain. Rows are delivered in shuffled order, so several parts of one
     document may remain, each a separate entry from here on.
  3. Tokens that the old settings dropped with a delivered row stay dropped, and so do documents
     that they dropped whole in a round with a delivered batch, which has counted them. Any other
     document without a delivered token is unchanged, even if the old overflow policy would have
     cut or dropped it.
  4. Documents that are taken out from here on (`exclude`, deleted rows of tables) leave the window,
     with all parts of them that remain.
  5. The remaining entries form the window of the next round, which continues to read and plans with
     the new settings.

Documents keep their age, and a lane its count of batches, so `next_batch` and the rotation are the
same on any number of ranks. Tokens that the next row would have repeated (`Seamless`) are not
repeated. The new overflow policy applies to whole documents: the remainder of a document that it
would have cut or dropped is dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.changes.growth import after_growth, grown_tables
from streampack.changes.rebuilding import plain, rebuild_packer
from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import ENDED
from streampack.deals.rule import DealRule, Report
from streampack.documents.blocks import Fields
from streampack.errors import StateError
from streampack.exclusion.leaf import restored, with_events
from streampack.exclusion.mask import MASKED, mask_of
from streampack.job.topology import Topology
from streampack.lane.config import LaneConfig
from streampack.lane.fill import Fill
from streampack.lane.rotation import OtherLanes
from streampack.lane.round import Round, held_by_source, round_start
from streampack.lane.state import RoundStart
from streampack.limits.balancing import Balance
from streampack.limits.loss_tokens import recounted
from streampack.mixtures.cursors import changed_cursor
from streampack.mixtures.source import Mixture, earlier_mixture
from streampack.mixtures.token_shares import WEIGHTS
from streampack.packing.choice import RowChoice
from streampack.packing.packer import Packer, plan_with
from streampack.run.plan import RunPlan, kind_of_plan
from streampack.run.state import RunState, batches_due
from streampack.window.config import WindowConfig
from streampack.window.entries import Entries
from streampack.window.planned import PlannedWindow, needed_tokens

ROWS = 64  # approximate number of rows packed to measure slots per document


def previous_config(
    config: LaneConfig,
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    changed: Collection[str],
) -> LaneConfig:
    """Rebuild the configuration of a saved fingerprint, which differs from `current` in `changed`.

    Raises:
        StateError: the configuration cannot be rebuilt.
    """
    source = config.source
    if "source" in changed:
        if config.order is not None:
            raise StateError(
                "The source of a run with an order cannot change on resume, but it did.",
                "Restore the source of the saved run, or start a new run.",
                setting="source",
            )
        if isinstance(source, Mixture):
            source = earlier_mixture(source, saved["source"], current["source"])
        else:
            source = source._as_saved(saved["source"], "before")
            if plain(source.describe()) != saved["source"]:
                raise StateError(
                    "Only a sources.Mixture, and a table with versions, can change on resume, got "
                    f"{source._kind}.",
                    "Restore the files of the saved run, or start a new run with a Mixture.",
                    setting="source",
                )
    packer: Any = rebuild_packer(saved["packer"]) if "packer" in changed else config.packer
    batch_tokens, balance = saved["batch_tokens"], saved["balance"]
    preparation, kind = config.preparation, balance["kind"] if balance else None
    choice = Balance.from_description(balance) if balance else RowChoice()
    # The description of a packer with rows of one length lacks its choice.
    if len(packer.seq_lens) == 1 and (packer.choice is not None or balance):
        packer = replace(packer, choice=choice if balance else None)
    if kind == "loss":
        preparation = recounted(preparation, packer.seq_lens[-1], saved["attention"])
    return replace(
        config,
        source=source,
        preparation=preparation,
        epochs=config.deal_settings.epochs_by(config.dealing),
        packer=packer,
        window=WindowConfig(**saved["window"]).resolve(packer, batch_tokens),
        batch_tokens=batch_tokens,
        choice=choice,
    )


def carry_over(
    before: LaneConfig,
    config: LaneConfig,
    lane: int,
    state: dict[str, Any],
    due: int,
    dealer: Dealer | None = None,
) -> dict[str, Any]:
    """Convert the state of a lane under `before` to its state under `config`.

    Args:
        before: configuration of the run so far.
        config: configuration from here on.
        lane: index of the lane.
        state: state of the lane, under `before`.
        due: turns of this lane before the batch that the run resumes at. A lane that ran out of
            documents gave fewer batches; documents it gains come from here on, not in past turns.
        dealer: deals the lanes their parts of the source; None if parts are not dealt.

    Raises:
        StateError: the documents differ from the documents of the state.
    """
    fill = Fill(before, lane, state, dealer)
    current = Round.again(fill, state)
    place = round_start(fill, state["step"], final=None) if current is None else current.start
    entries, position, emitted = place.entries, place.position, state["emitted"]
    if current is not None and emitted:
        entries = _left(entries, current.planned, emitted, place.continued)
    # Documents that were taken out before count with the lane's next batch, which is still to come.
    in_part, masked = place.continued, state.get(MASKED, [0, 0])
    if (hits := mask_of(config).hits(entries.origin)).any():
        counts = _counts(entries.pick(hits), bool(in_part and hits[-1]))
        masked = [old + new for old, new in zip(masked, counts, strict=True)]
        in_part = bool(in_part and not hits[-1])
        entries = entries.pick(~hits)
    if before.source is not config.source:
        added = [name for name in config.source._parts if name not in before.source._parts]
        added += [name or "the table" for name, _ in grown_tables(before, config)]
        if added and place.final and not len(entries):
            raise StateError(
                f'Lane {lane} has ended, and documents of "{added[0]}" were added.',
                "Go on with more data before the first lane ends, or start a new run.",
                setting="source",
            )
        until = position.serial + place.admitted
        cursor = after_growth(before, config, fill.stream, position.cursor)
        if isinstance(before.source, Mixture):
            cursor = changed_cursor(cursor, before.source, until)
        position = replace(position, cursor=cursor)
    # Tokens that the next row would have repeated are delivered already.
    start = entries.start + entries.repeated
    packer = config.packer
    sizes = fill.window.buffer.fields.sizes(entries, packer)
    needed = needed_tokens(packer, sizes, config.batch_tokens)
    held = np.maximum(needed - start, 0)
    continued = in_part and packer.overflow in ("split", "error")
    if continued:  # a document that continues is always delivered in whole rows
        was = int(entries.held[-1] - entries.repeated[-1])
        held[-1] = max(was, 0) // packer.seq_lens[-1] * packer.seq_lens[-1]
    entries = entries.changed(start=start, held=held, repeated=np.zeros_like(start))
    step = max(place.step + emitted, due)
    following = RoundStart(
        lane=lane,
        number=place.number + 1,
        step=step,
        final=None,
        position=position,
        admitted=place.admitted - (place.continued and not in_part),
        continued=continued,
        entries=entries,
        skipped=place.skipped,
        reports=place.reports,
        reported_deal=place.reported_deal,
    )
    if dealer is not None and config.dealing is not None:
        room = _room(packer, entries.held - entries.repeated, sizes.weights)
        reports = _reports(fill, following, dealer, config.dealing, room)
        following = replace(following, reports=reports, reported_deal=config.dealing.first)
    return {**following.state(0), **({MASKED: masked} if any(masked) else {})}


def _counts(masked: Entries, in_part: bool) -> list[int]:
    """Return the number of documents in these entries, and of their tokens that were not delivered.

    If the last one is held in part, the stream counts all of it on its way.
    """
    documents, delivered = len(np.unique(masked.serial)), masked.start + masked.repeated
    tokens = masked.length - delivered
    if not in_part:
        return [documents, int(tokens.sum())]
    return [documents - 1, int(tokens[:-1].sum() - delivered[-1])]


def _room(packer: Packer, lengths: NDArray[np.int64], weights: Fields) -> tuple[int, int]:
    """Return slots and tokens of the rows that a packer makes of documents of `lengths` (N,)."""
    longest = packer.seq_lens[-1]
    held = (lengths > 0) & ((lengths <= longest) | (packer.overflow == "split"))
    lengths = lengths[held]
    if packer._packs_members or not len(lengths):
        return 1, 1
    times = min(ROWS * longest // int(lengths.sum()) + 1, ROWS)  # else the last row weighs too much
    fields = {name: np.tile(values[held], times) for name, values in weights.items()}
    plan = plan_with(packer, np.tile(lengths, times), fields, final=True, seed=0)
    return int(plan.seq_len.sum()), int((plan.stop - plan.start).sum())


def _reports(
    fill: Fill, following: RoundStart, dealer: Dealer, rule: DealRule, room: tuple[int, int]
) -> list[list[int]]:
    """Return the lane's reports for past deals and its report for the first deal of `rule`.

    Args:
        fill: fill of the lane under the old settings, which `dealer` dealt by.
        following: start of the lane's next round.
        dealer: deals by the old settings.
        rule: deal rule from here on.
        room: slots of the lane's rows from here on, and the tokens in them.
    """
    slots, placed = room
    reports = [report for report in following.reports if report[0] < rule.first]
    ended = range(following.reported_deal + 1, rule.first)  # the lane had ended, and now continues
    lines = range(len(dealer.rule.lines))
    reports += [[n, line, *ENDED] for n in ended for line in lines if dealer.gave(n, line)]
    held = held_by_source(following.entries, continued=following.continued)
    for line, (source, until, ahead, tokens) in enumerate(fill.stream.remaining()):
        held_tokens = int(held[source]) if source < len(held) else 0
        numbers = ahead + held_tokens, tokens + ahead
        left, counted = (number * slots // max(placed, 1) for number in numbers)
        reports.append([rule.first, line, *Report(until, left, counted)])
    added = range(len(dealer.rule.lines), len(rule.lines))
    return reports + [[rule.first, line, *Report(0, 0, 0)] for line in added]


def _left(entries: Entries, planned: PlannedWindow, emitted: int, continued: bool) -> Entries:
    """Return the entries that remain once the first `emitted` batches of the plan are delivered.

    `held` is valid for the last entry if it is held in part, and meaningless otherwise.
    """
    plan, count = planned.plan, len(entries)
    # The plan does not contain the empty batch of a lane that waited for a deal.
    went = planned.rows[: int(planned.batches[min(emitted, len(planned.batches) - 1)])]
    goes = np.repeat(np.isin(np.arange(plan.num_rows), went), np.diff(plan.row_offsets))
    ended = _ended(planned, went, goes, count)
    if continued:
        ended[-1] = False
    # The gaps of a document between delivered tokens, delivered rows and its end remain.
    to_end = np.flatnonzero(~ended)
    undelivered = entries.length - entries.start
    document = np.concatenate((np.arange(count), plan.document[goes], to_end))
    low = np.concatenate((np.full(count, -1), plan.start[goes], undelivered[to_end]))
    high = np.concatenate((entries.repeated, plan.stop[goes], undelivered[to_end]))
    order = np.lexsort((low, document))
    document, low, high = document[order], low[order], high[order]
    base = document * (int(high.max(initial=0)) + 1)
    reached = np.maximum.accumulate(base + high) - base
    stays = (document[1:] == document[:-1]) & (low[1:] > reached[:-1])
    low, high = reached[:-1][stays], low[1:][stays]
    picked = entries.pick(document[1:][stays])
    length = picked.start + high
    return picked.changed(
        start=picked.start + low,
        held=picked.held - low,
        length=length,
        cut=picked.cut + picked.length - length,
        repeated=np.zeros_like(low),
    )


def _ended(
    planned: PlannedWindow, went: NDArray[np.int64], goes: NDArray[np.bool_], count: int
) -> NDArray[np.bool_]:
    """Return a (count,) mask of documents with a delivered last segment: their rest is dropped.

    `goes` is the mask of segments in the rows `went`.
    """
    plan, most = planned.plan, planned.lengths
    dropped = plan.dropped_by(went)
    order = np.lexsort((plan.start, plan.document))
    stops = np.searchsorted(plan.document[order], np.arange(count + 1))
    whole: NDArray[np.bool_] = most <= dropped  # counted with the round's first batch
    if not len(order):
        return whole
    last = order[stops[1:] - 1]
    return np.where(np.diff(stops) > 0, goes[last] & (plan.stop[last] + dropped >= most), whole)


def resume_changed(
    config: LaneConfig,
    topology: Topology,
    state: Mapping[str, Any],
    current: Mapping[str, Any],
    changed: Collection[str],
) -> tuple[RunPlan, RunState]:
    """Return the plan and the state of a run that continues with changed settings.

    Args:
        config: configuration with the new settings.
        topology: topology of this rank.
        state: saved state, already checked.
        current: fingerprint of `config`.
        changed: fields in which the fingerprints differ.
    """
    before = previous_config(config, state["fingerprint"], current, changed)
    before = restored(config, before, state)
    delivered = state["next_batch"] // config.lanes
    dealing = config.deal_settings.rule_after(before.dealing, before.deal_settings, delivered)
    config = replace(config, dealing=dealing)
    plan = kind_of_plan(config).of(config, topology)
    run = RunState.of_rank(state, plan.fingerprint, plan.topology)
    before = replace(before, beside=run.beside)
    step = plan.steps_before(run.next_batch)
    run.beside = with_events(run.beside, config, state["fingerprint"], run.next_batch, step)
    if "source" in changed:  # its weights apply from here on
        run.beside = {name: value for name, value in run.beside.items() if name != WEIGHTS}
    sharing, rule = run.sharing(connected=False), before.dealing
    dealer = sharing.dealer(rule, sharing.exchange(rule), run.states())
    OtherLanes(before, dealer, sharing).report_for(delivered)
    if dealer is not None:
        dealer.make(dealer.rule.known(delivered))
    run.replan(
        lambda lane, state_: carry_over(
            before,
            config,
            lane,
            state_,
            batches_due(lane, run.next_batch, config.lanes),
            dealer,
        )
    )
    return plan, run
