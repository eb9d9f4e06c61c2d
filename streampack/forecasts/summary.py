"""summary: the settings of a run's plan, a line each, as ``print(plan)`` shows them."""

from __future__ import annotations

from streampack.run.plan import RunPlan


def summary(plan: RunPlan) -> str:
    """Return the plan's settings in some lines."""
    config, topology = plan.config, plan.topology
    packer, tokens = config.packer, config.batch_tokens
    longest = packer.seq_lens[-1]
    epochs = "endless" if config.epochs is None else f"{config.epochs:,} epochs"
    lines = {
        "source": repr(config.source),
        "packer": repr(packer),
        "batch": f"{tokens // longest:,} rows of {longest:,} tokens",
        "attention": plan.fingerprint["attention"],
        "run": f"{epochs}, seed {config.seed}, {'' if config.shuffle else 'not '}shuffled",
        "lanes": f"{config.lanes:,}, with windows of {config.window.rows:,} rows",
        "rank": f"{topology.rank} of {topology.world_size:,}",
    }
    return "\n".join(["RunPlan", *(f"  {name:11}{value}" for name, value in lines.items())])
