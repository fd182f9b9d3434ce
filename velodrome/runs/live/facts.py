"""What the live view is told about a run besides its numbers."""

from __future__ import annotations

from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.setup import is_rule


def facts_of(config: RunConfig, device: str) -> RunFacts:
    """Return what advice about the bottleneck depends on."""
    rule = is_rule(config.env)
    return RunFacts(
        algorithm=config.algorithm,
        device=device,
        environment_device=device if rule else "cpu",
        rule_environment=rule,
        shared_trunk=config.network.shared,
        bfloat16=config.learner.precision == "bfloat16",
    )


def action_names(config: RunConfig) -> tuple[str, ...] | None:
    """Return the names of a trading environment's actions, None where actions have none."""
    if config.env != "trading":
        return None
    from velodrome.envs.trading import world as trading_world
    from velodrome.envs.trading.config import trading_config

    parameters = dict(config.params)
    trading = trading_config(parameters.pop("preset", None), **parameters)
    return None if trading.action == "continuous" else trading_world.action_names(trading)
