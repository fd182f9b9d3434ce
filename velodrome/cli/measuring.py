"""Commands that measure speed. What may be asked is checked by the benchmark's own model of its options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from velodrome.cli.shared import Flag, Words, bench, console, split_words, validated


@Parameter(name="*")
@dataclass(frozen=True)
class Measuring:
    """What every benchmark can be asked for.

    Parameters
    ----------
    against
        Peers to measure: all, none, or some of those that --against nonsense lists.
    seconds
        Seconds per measurement, all repeats together.
    repeats
        Rounds in which contenders take turns; the median counts.
    seed
        Of the problem, the environments and the actions.
    json
        File for everything that was measured, as JSON.
    plot
        File for a plot: .png, .svg or .pdf.
    quick
        A coarse run of about a minute or less; other options still win where given. The first run on a machine compiles
        before it measures.
    """

    against: Words = None
    seconds: float | None = None
    repeats: int | None = None
    seed: int | None = None
    json: Path | None = None
    plot: Path | None = None
    quick: Flag = False

    def asked(self, **more: Any) -> dict[str, Any]:
        """Return the options that were given, as a benchmark's model names them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)} | more
        words = {name: split_words(value) if isinstance(value, list) else value for name, value in given.items()}
        files = {"json": "json_path", "plot": "plot_path"}
        return {files.get(name, name): value for name, value in words.items() if not (value is None or value is False)}


DEFAULTS = Measuring()


@bench.command
def step(
    *,
    env: str = "trading",
    sizes: Words = None,
    bars: int | None = None,
    window: int | None = None,
    features: int | None = None,
    instruments: Words = None,
    episode_length: int | None = None,
    processes: Words = None,
    threads: int | None = None,
    measuring: Measuring = DEFAULTS,
) -> None:
    """Measure steps a second of Velodrome and of its peers on the same problem, after checking that results agree.

    Parameters
    ----------
    env
        Environment of the catalogue: trading, portfolio, cage2, template, or one that was registered. Options that
        have no effect on it are refused.
    sizes
        Numbers of environments in a batch, such as 64 1024 16384.
    bars
        Bars of the market.
    window
        Bars in an observation.
    features
        Features of each bar in an observation.
    instruments
        Instruments of a portfolio, such as 7 100.
    episode_length
        Decisions in an episode.
    processes
        Worker processes to try for peers that use some; the best counts.
    threads
        Threads of the rows with all threads; all that there are if not given.
    """
    own = {name: value for name, value in locals().items() if name not in ("env", "measuring")}
    from velodrome.bench.run import run_benchmark
    from velodrome.bench.step import step_benchmark
    from velodrome.envs.catalog import CATALOG

    entry = CATALOG.get(env)
    benchmark = step_benchmark(entry)
    given = measuring.asked(**own)
    run_benchmark(benchmark(entry, validated(benchmark.options_for(entry), given)), console())


@bench.command(name="train")
def bench_train(*, algorithm: str | None = None, measuring: Measuring = DEFAULTS) -> None:
    """Measure whole training, collecting and learning: steps a second and time to a part of the known optimum.

    Parameters
    ----------
    algorithm
        Algorithm of the catalogue: ppo, dqn, or one that was registered. The peers train ppo.
    """
    from velodrome.bench.run import run_benchmark
    from velodrome.bench.train import TrainBenchmark, TrainOptions

    given = measuring.asked(algorithm=algorithm)
    run_benchmark(TrainBenchmark(validated(TrainOptions, given)), console())


@bench.command(name="vector")
def bench_vector(
    env: str | None = None,
    /,
    *,
    num_envs: int | None = None,
    policy: str | None = None,
    sweep: Flag = False,
    straggler: Flag = False,
    suite: Flag = False,
    measuring: Measuring = DEFAULTS,
) -> None:
    """Measure an environment under every vectoriser, ours and others', and say which is recommended for it and why.

    Parameters
    ----------
    env
        Gymnasium id, module:Class, module:function, trading-plain, burn:20us or sleep:2ms (any number).
    num_envs
        Environments of every contender.
    policy
        Where a small network computes the actions: cpu or cuda; none takes sampled actions.
    sweep
        Measure process with every sensible number of workers, and how near the recommendation comes to the best.
    straggler
        Measure async beside process where one environment is 10 times slower than the rest.
    suite
        Measure the environments that promises are about, and the straggler, and judge the promises.
    """
    own = {name: value for name, value in locals().items() if name != "measuring"}
    from velodrome.bench.run import run_benchmark
    from velodrome.bench.vector import VectorBenchmark, VectorOptions

    given = measuring.asked(**own)
    run_benchmark(VectorBenchmark(validated(VectorOptions, given)), console())


@bench.command(name="result")
def bench_result(
    *,
    problems: Words = None,
    seeds: int | None = None,
    devices: Words = None,
    processes: int | None = None,
    measuring: Measuring = DEFAULTS,
) -> None:
    """Measure the time from a command to a result: seconds to parts of the known optimum, out of sample.

    Velodrome on the CPU and on a GPU beside Stable-Baselines3's PPO and PPO in JAX, each seed in a process of its own.
    With 5 seeds that takes some minutes; CAGE-2, timed to published scores, takes longer.

    Parameters
    ----------
    problems
        What is learnt: ar1, a market with a known optimum, and cage2.
    seeds
        Trainings of each contender, on markets of their own.
    devices
        Where Velodrome learns: cpu, cuda, or both, which is what happens where there is a GPU.
    processes
        Seeds of a contender on the CPU that learn at once, with a share of the cores each. --seconds is how long each
        training may learn; --repeats has no meaning here.
    """
    own = {name: value for name, value in locals().items() if name != "measuring"}
    from velodrome.bench.result.benchmark import ResultBenchmark, ResultOptions
    from velodrome.bench.run import run_benchmark

    run_benchmark(ResultBenchmark(validated(ResultOptions, measuring.asked(**own))), console())


@bench.command(name="scale")
def bench_scale(
    *,
    env: str = "trading",
    parts: Words = None,
    cores: Words = None,
    ranks: Words = None,
    size: int | None = None,
    device: str | None = None,
    iterations: int | None = None,
    hidden: Words = None,
    threads: int | None = None,
    measuring: Measuring = DEFAULTS,
) -> None:
    """Measure what more cores, processes and ranks bring: steps a second beside those of one, times how many there are.

    Steps of as many environments on each core, beside vectorisers with a process for each environment, and training
    with as many environments in each rank of `velodrome train --nproc`, beside the same training without ranks.

    Parameters
    ----------
    env
        Environment of the catalogue that is stepped.
    parts
        What is measured: steps, training, or both.
    cores
        Cores to step on, such as 1 2 4; 1, 2, 4 … and all that there are if not given. One is always measured.
    ranks
        Processes to train in, such as 1 2 4; as many as there are cores, or GPUs, if not given.
    size
        Environments of each core, and of each rank.
    device
        Where the ranks learn: cpu or cuda. Steps are on cores in any case.
    iterations
        Iterations of each training; the first few are not counted.
    hidden
        Widths of the network's hidden layers, such as 64 64.
    threads
        Threads of each rank, and of the training without ranks.
    """
    own = {name: value for name, value in locals().items() if name not in ("env", "measuring")}
    from velodrome.bench.run import run_benchmark
    from velodrome.bench.scale.benchmark import ScaleBenchmark, ScaleOptions
    from velodrome.envs.catalog import CATALOG

    run_benchmark(ScaleBenchmark(CATALOG.get(env), validated(ScaleOptions, measuring.asked(**own))), console())


@bench.command(name="generalise")
def bench_generalise(
    *,
    problems: Words = None,
    bars: Words = None,
    windows: Words = None,
    contenders: Words = None,
    markets: int | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    processes: int | None = None,
    measuring: Measuring = DEFAULTS,
) -> None:
    """Measure what agents keep on bars they never saw: share of the best log return, by amount of data.

    Markets are synthetic, so that the best is known. Ridge and logistic regression on the same inputs and PPO of
    Stable-Baselines3 stand beside the agents; --against none leaves the latter out. With --json, each training is kept
    when it ends, and a second call goes on where the first stopped. docs/generalisation.md has what was found.

    Parameters
    ----------
    problems
        Kinds of market: ar1, ou, regimes, ar1-with-costs, factors (a portfolio of five instruments).
    bars
        Bars of a market, 70 % of them to train on, such as 2000 10000.
    windows
        Bars in an observation, such as 8 32.
    contenders
        What to train: defaults (the preset as it is), all, or some of whole-windows, before, not-taught,
        not-held, latest-weights, slower, more-entropy, small-network, weight-decay, kl-penalty, noise,
        masked-features, masked-bars, layer-norm, dropout, other-histories, other-histories-whole-windows,
        ensemble-of-8 and ensemble-of-8-alike, as ensembles were while all members began as the same rule. Each
        but the first and ensemble-of-8 changes something of the preset.
    markets
        Markets of each kind; their seeds follow --seed.
    seeds
        Trainings on each market.
    steps
        Environment steps of each training; as many as the preset has if not given.
    processes
        Trainings at once; as many as there are cores if not given.
    """
    own = {name: value for name, value in locals().items() if name != "measuring"}
    from velodrome.bench.generalise.benchmark import GeneraliseBenchmark, GeneraliseOptions
    from velodrome.bench.run import run_benchmark

    run_benchmark(GeneraliseBenchmark(validated(GeneraliseOptions, measuring.asked(**own))), console())
