"""What holds a training up, in one sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.config.parameters import is_rule
from velodrome.runs.machine.use import MachineUse

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig

Kind = Literal["unknown", "environment", "inference", "learning", "other", "disk", "processes", "gpu_idle", "none"]

SHORTEST = 0.05  # seconds of measured time below which nothing is said
DOMINANT = 0.45  # share of the time from which a phase is the bottleneck
DISK_WAIT = 0.3  # cores idle for a disk
OTHER_PROCESSES = 0.35  # share of the machine's cores that others keep busy
IDLE_GPU = 0.5  # share of the time with a kernel running, below which a GPU waits for work


@dataclass(frozen=True)
class RunFacts:
    """What the advice depends on besides the measurements."""

    algorithm: str = "ppo"
    device: str = "cpu"  # where the networks are
    environment_device: str = "cpu"  # where the environments step
    rule_environment: bool = True  # compiled from a rule, or else any Gymnasium environment
    shared_trunk: bool = False  # network.shared
    bfloat16: bool = False  # precision of the matrix products
    compiled: bool = False  # whether kernels were compiled while it was measured, which later starts will find

    @classmethod
    def of(cls, config: RunConfig, device: str) -> RunFacts:
        """Return what a configuration says."""
        rule = is_rule(config.env)
        return cls(
            algorithm=config.algorithm,
            device=device,
            environment_device=device if rule else "cpu",
            rule_environment=rule,
            shared_trunk=config.network.shared,
            bfloat16=config.learner.precision == "bfloat16",
        )


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck's kind, and a sentence that names it with numbers and says what to do."""

    kind: Kind
    sentence: str


def find_bottleneck(
    seconds: Mapping[str, float], use: MachineUse | None = None, facts: RunFacts | None = None
) -> Bottleneck:
    """Judge from the seconds of each phase, a sample of the machine over the same stretch, and how the run is set up.

    `seconds` is what `PhaseClock.take` returns; without a sample of the machine the phases alone decide.
    """
    facts = facts or RunFacts()
    phases = {name: seconds.get(name, 0.0) for name in ("environment", "inference", "learning", "other")}
    total = sum(phases.values())
    if total < SHORTEST:
        return Bottleneck("unknown", "Too little was measured to tell what the bottleneck is.")
    shares = {name: value / total for name, value in phases.items()}
    largest = max(shares, key=lambda name: shares[name])
    if use is not None:
        found = _outside_the_phases(shares, largest, use, facts)
        if found is not None:
            return found
    if shares[largest] < DOMINANT:
        split = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01)
        return Bottleneck("none", f"No single bottleneck: {split}.")
    kind, advice = _ADVICE[largest]
    return Bottleneck(kind, f"{largest.capitalize()} {shares[largest]:.0%} of the time{advice(use, facts)}.")


def _outside_the_phases(
    shares: Mapping[str, float], largest: str, use: MachineUse, facts: RunFacts
) -> Bottleneck | None:
    """Return what the phases cannot show: a slow disk, other processes, a GPU that waits."""
    if largest == "other" and use.disk_wait >= DISK_WAIT:
        return Bottleneck(
            "disk",
            f"The disk: {use.disk_wait:.1f} cores wait for it and {shares['other']:.0%} of the time is outside the "
            "training; save and log less often (checkpoint.every_seconds, logging.log_every) or put the runs on a "
            "faster disk.",
        )
    environment_on_cpu = largest == "environment" and facts.environment_device == "cpu"
    others = use.machine_cpu - use.process_cpu
    # Where the process is confined to some of the cores, others on the remaining ones take nothing from it.
    everywhere = use.cores == use.machine_cores
    if everywhere and (facts.device == "cpu" or environment_on_cpu) and others >= OTHER_PROCESSES * use.machine_cores:
        return Bottleneck(
            "processes",
            f"Other processes keep {others:.1f} of the {use.machine_cores} cores busy, this run {use.process_cpu:.1f}: "
            f"it is faster alone. Within the run, {largest} takes {shares[largest]:.0%} of the time.",
        )
    gpu_busy = None if facts.device == "cpu" or use.gpu is None else use.gpu.busy
    if gpu_busy is not None and gpu_busy < IDLE_GPU and not environment_on_cpu and shares["other"] < DOMINANT:
        return Bottleneck(
            "gpu_idle",
            f"GPU {gpu_busy:.0%} busy, the rest of the time it waits for work: more environments (num_envs), "
            f"longer rollouts ({facts.algorithm}.rollout_length) or larger batches.",
        )
    return None


def _environment(use: MachineUse | None, facts: RunFacts) -> str:
    if facts.environment_device != "cpu":
        return ", on the GPU: the rule itself is the limit; a shorter window or fewer features make it cheaper"
    where = "" if use is None else f", {use.process_cpu:.1f} of {use.cores} cores busy"
    if not facts.rule_environment:
        return (
            f"{where}: a Gymnasium environment in Python; `velodrome bench vector` compares backends for it "
            "(vector.env_type), and a rule for the native backend (docs/add_an_environment.md) is faster than any"
        )
    if use is not None and use.process_cpu < 0.7 * use.cores:
        return f"{where}: more environments (num_envs) give every core a share"
    return f"{where}: {_gpu(use)}, more cores, or a shorter window (market.windows)"


def _inference(use: MachineUse | None, facts: RunFacts) -> str:
    smaller = "a smaller network (network.hidden)"
    return f": more environments per call (num_envs) or {smaller}" + ("" if facts.device != "cpu" else f", {_gpu(use)}")


def _learning(use: MachineUse | None, facts: RunFacts) -> str:
    entry = ALGORITHMS.get(facts.algorithm)
    ways = list(entry.advice)
    if entry.shares_trunk and not facts.shared_trunk:
        ways.append("a shared trunk (network.shared=true)")
    if facts.device == "cpu":
        ways.append(_gpu(use))
        return f", all on the CPU: {_either(ways)}"
    if not facts.bfloat16:
        ways.append(f"half precision ({facts.algorithm}.precision=bfloat16)")
    ways.append("a smaller network (network.hidden)")
    busy = "" if use is None or use.gpu is None or use.gpu.busy is None else f", GPU {use.gpu.busy:.0%} busy"
    return f"{busy}: {_either(ways)}"


def _other(use: MachineUse | None, facts: RunFacts) -> str:
    if facts.compiled:
        return ", outside the phases, where kernels were compiled: the next start finds them and is faster"
    return (
        ", outside the phases (evaluation, checkpoints, logging): evaluate and save less often "
        "(evaluation.every_steps, checkpoint.every_seconds) or do more per iteration "
        f"(num_envs, {facts.algorithm}.rollout_length)"
    )


_ADVICE: dict[str, tuple[Kind, Callable[[MachineUse | None, RunFacts], str]]] = {
    "environment": ("environment", _environment),
    "inference": ("inference", _inference),
    "learning": ("learning", _learning),
    "other": ("other", _other),
}


def _gpu(use: MachineUse | None) -> str:
    return "device=cuda" if use is not None and use.gpu is not None else "a machine with a GPU (device=cuda)"


def _either(ways: list[str]) -> str:
    return f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]
