"""Commands that measure speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from velodrome.cli.shared import Flag, Words, bench, console, split_words, validated
from velodrome.errors import ConfigError, did_you_mean


@bench.command
def step(
    *,
    env: str = "trading",
    sizes: Words = None,
    against: Words = None,
    seconds: float | None = None,
    repeats: int | None = None,
    bars: int | None = None,
    window: int | None = None,
    features: int | None = None,
    instruments: Words = None,
    episode_length: int | None = None,
    processes: Words = None,
    threads: int | None = None,
    seed: int | None = None,
    json: Path | None = None,
    plot: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure steps a second of Velodrome and of its peers on the same problem, after checking that results agree.

    Parameters
    ----------
    env
        trading; portfolio, without processes and threads; or cage2, which takes sizes, against (cyborg, mini_cage),
        seconds, repeats, seed, json, plot and quick.
    sizes
        Numbers of environments in a batch, such as 64 1024 16384.
    against
        Peers to measure: all, none, or some of numpy, sync, async, dummy, subproc, torchtrade.
    seconds
        Seconds of stepping per measurement, all repeats together.
    repeats
        Repeats per measurement; the median counts.
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
    seed
        Of the market, the actions and the starts.
    json
        File for everything that was measured, as JSON.
    plot
        File for a plot, as PNG.
    quick
        A coarse run of under half a minute; other options still win where given. The first run on a machine compiles
        before it measures, with --env portfolio for longer than that.
    """
    given = {
        "sizes": split_words(sizes), "against": split_words(against), "seconds": seconds, "repeats": repeats,
        "bars": bars, "window": window, "features": features, "episode_length": episode_length,
        "processes": split_words(processes), "threads": threads, "seed": seed, "json_path": json, "plot_path": plot,
        "instruments": split_words(instruments), "quick": quick or None,
    }  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    if env == "trading":
        from velodrome.bench.options import StepBenchmarkOptions
        from velodrome.bench.step import run_step_benchmark

        run_step_benchmark(validated(StepBenchmarkOptions, asked), console())
    elif env == "portfolio":
        from velodrome.bench.portfolio_step import PortfolioOptions, run_portfolio_benchmark

        run_portfolio_benchmark(validated(PortfolioOptions, asked), console())
    elif env == "cage2":
        from velodrome.bench.cage2_step import Cage2Options, run_cage2_benchmark

        run_cage2_benchmark(validated(Cage2Options, asked), console())
    else:
        legal = ("trading", "portfolio", "cage2")
        raise ConfigError(f"--env {env}: it is {', '.join(legal)}.{did_you_mean(env, legal)}")


@bench.command(name="train")
def bench_train(
    *,
    against: Words = None,
    seconds: float | None = None,
    seed: int | None = None,
    json: Path | None = None,
    plot: Path | None = None,
    quick: Flag = False,
) -> None:
    """Measure whole training, collecting and learning: steps a second and time to a part of the known optimum.

    Parameters
    ----------
    against
        Peers to measure: all, none, or some of those that --against nonsense lists.
    seconds
        Seconds of training per measurement.
    seed
        Of the market and the learners.
    json
        File for everything that was measured, as JSON.
    plot
        File for a plot, as PNG.
    quick
        A coarse run of about a minute; other options still win where given.
    """
    from velodrome.bench.train import run_train_benchmark
    from velodrome.bench.train_options import TrainBenchmarkOptions

    given = {"against": split_words(against), "seconds": seconds, "seed": seed, "json_path": json, "plot_path": plot,
             "quick": quick or None}  # fmt: skip
    options = validated(TrainBenchmarkOptions, {name: value for name, value in given.items() if value is not None})
    run_train_benchmark(options, console())


@bench.command(name="vector")
def bench_vector(
    env: str | None = None,
    /,
    *,
    num_envs: int | None = None,
    against: Words = None,
    policy: str | None = None,
    seconds: float | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    sweep: Flag = False,
    straggler: Flag = False,
    suite: Flag = False,
    json: Path | None = None,
    plot: Path | None = None,
    quick: Flag = False,
) -> None:
    """Measure an environment under every vectoriser, ours and others', and say which is recommended for it and why.

    Parameters
    ----------
    env
        Gymnasium id, module:Class, module:function, trading-plain, burn:20us or sleep:2ms (any number).
    num_envs
        Environments of every contender.
    against
        Peers to measure: all, none, or some of dummy, subproc, sync, async.
    policy
        Where a small network computes the actions: cpu or cuda; none takes sampled actions.
    seconds
        Seconds of stepping per contender, all repeats together.
    repeats
        Rounds in which contenders take turns; the median counts.
    seed
        Of the environments and the actions.
    sweep
        Measure process with every sensible number of workers, and how near the recommendation comes to the best.
    straggler
        Measure async beside process where one environment is 10 times slower than the rest.
    suite
        Measure the environments that promises are about, and the straggler, and judge the promises.
    json
        File for everything that was measured, as JSON.
    plot
        File for a plot, as PNG.
    quick
        A coarse run; other options still win where given.
    """
    from velodrome.bench.vector import run_vector_benchmark
    from velodrome.bench.vector_options import VectorBenchmarkOptions

    given = {
        "env": env, "num_envs": num_envs, "against": split_words(against), "policy": policy, "seconds": seconds,
        "repeats": repeats, "seed": seed, "sweep": sweep or None, "straggler": straggler or None,
        "suite": suite or None, "json_path": json, "plot_path": plot, "quick": quick or None,
    }  # fmt: skip
    options = validated(VectorBenchmarkOptions, {name: value for name, value in given.items() if value is not None})
    run_vector_benchmark(options, console())
