"""Memory that runs out while a run trains: it goes on with less, says so, and ends with the right number of steps."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runs.small_runs import last_tensors, one_thread, small_run, tiny  # noqa: F401
from velodrome.errors import BackendError, ConfigError, EnvironmentFaultError, Fault, OutOfMemoryError
from velodrome.learn.engines.autograd import AutogradEngine
from velodrome.learn.ppo import PPO
from velodrome.rollout.worlds import Worlds
from velodrome.runs import checkpoint, setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine import memory, plan
from velodrome.runs.run import resume, train
from velodrome.runs.session import Session


class CudaAPIError(Exception):
    """As Numba names the driver's errors."""


ERRORS: dict[str, Exception] = {
    "python": MemoryError(),
    "numpy": MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"),
    "torch": torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1 GiB is "
        "free. Process 7 has 138 GiB memory in use."
    ),
    "numba": CudaAPIError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
    "runtime": RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere."),
    "host": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 32000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "driver": RuntimeError("CUDA error: cudaErrorMemoryAllocation"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "system": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "mapping": RuntimeError("unable to mmap 4096 bytes from file </torch_7>: Cannot allocate memory (12)"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
def test_errors_of_every_library_are_known(error):
    told = memory.shortage(error)
    assert told is not None
    assert "\n" not in told
    assert "Process 7" not in told
    second = RuntimeError("operation failed due to a previous error during capture")
    second.__context__ = error
    assert memory.shortage(second) == memory.avoidable_shortage(second) == told


def test_a_training_that_has_no_less_to_go_on_with_lacks_memory_too():
    error = OutOfMemoryError("memory ran out with 1 environments (MemoryError), and the training needs 1.")
    assert memory.shortage(error) == str(error).rstrip(".")
    assert memory.avoidable_shortage(error) is None


def test_memory_that_an_environment_lacks_is_its_own_fault_and_no_reason_for_fewer():
    """A worker tells what its environments raised as a text."""
    raised = Fault(3, 0, "raised", "MemoryError: Unable to allocate 2.00 GiB for an array with shape (268435456,)")
    error = EnvironmentFaultError([raised], "The others are unharmed.")
    assert memory.shortage(error) == "2.00 GiB could not be allocated"
    assert memory.avoidable_shortage(error) is None
    for fault in (
        raised._replace(message="ValueError: no such price"),
        raised._replace(kind="memory", message="its worker used 900 MiB, more than memory_limit allows"),
    ):
        assert memory.shortage(EnvironmentFaultError([fault], "")) is None
    made = EnvironmentFaultError([raised], "No environment could be made.")
    made.__cause__ = ERRORS["numpy"]
    assert memory.avoidable_shortage(made) == "7.45 GiB could not be allocated"


def test_ranks_which_have_fixed_shares_do_not_go_on_with_fewer(monkeypatch):
    monkeypatch.setattr(memory, "is_rank", lambda: True)
    assert memory.shortage(MemoryError()) == "MemoryError"
    assert memory.avoidable_shortage(MemoryError()) is None


def test_an_amount_is_told_in_few_words():
    assert memory.shortage(ERRORS["torch"]) == "2.00 GiB could not be allocated"
    assert memory.shortage(ERRORS["numpy"]) == "7.45 GiB could not be allocated"
    assert memory.shortage(ERRORS["host"]) == "29.8 GiB could not be allocated"
    assert memory.shortage(ERRORS["python"]) == "MemoryError"


@pytest.mark.parametrize(
    "error",
    [ValueError("out of memory"), ConfigError("they take 8 GB, out of memory"), BackendError("out of memory"),
     RuntimeError("shape"), KeyboardInterrupt()],
    ids=repr,
)  # fmt: skip
def test_other_errors_are_not(error):
    assert memory.shortage(error) is None


# Runs


def limited(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception, from_step: int = 0) -> None:
    """Let rollouts of more environments than this fail, in the middle of what they write."""
    step = Worlds.renew

    def renew(worlds: Worlds, steps: int) -> None:
        if worlds.num_envs > most and steps >= from_step:
            worlds.step(torch.zeros(worlds.num_envs, dtype=torch.int64))
            raise error
        step(worlds, steps)

    monkeypatch.setattr(Worlds, "renew", renew)


def test_a_run_goes_on_with_half_the_environments(tmp_path, monkeypatch, capfd):
    limited(monkeypatch, 4, ERRORS["numba"], from_step=320)
    run = train("smoke", mode="plain", evaluate=False, **tiny(tmp_path))
    assert run.status == "finished"
    last = checkpoint.latest_valid(run.path)
    assert (last.steps, last.plain["learner"]["num_envs"]) == (640, 4)
    printed = " ".join(capfd.readouterr().out.split())
    told = "at step 320: it goes on from step 256 with 4."
    assert "warning: memory ran out with 8 environments (" in printed
    assert told in printed
    assert told in run.folder.log_path.read_text()
    assert "stopped by" not in printed
    # Rows of the iterations that were thrown away are gone; those that follow are of 4 environments.
    losses = run.metrics.filter(run.metrics["name"] == "loss/policy")
    assert losses["step"].to_list() == [64, 128, 192, 256, *range(288, 641, 32)]


def test_it_goes_on_as_a_run_from_that_checkpoint_would(tmp_path, monkeypatch):
    """What was left behind in the middle of a rollout has no influence; nor has a stop afterwards."""
    with monkeypatch.context() as patch:
        limited(patch, 4, MemoryError(), from_step=320)
        run = small_run(tmp_path / "one", steps=640)
    with monkeypatch.context() as patch:
        limited(patch, 4, MemoryError(), from_step=320)
        stopped = small_run(tmp_path / "two", steps=384)
    again = resume(stopped.path, steps=640, mode="quiet", evaluate=False)
    tensors, wanted = last_tensors(again), last_tensors(run)
    for name, tensor in wanted.items():
        assert torch.equal(tensors[name], tensor), name


def test_a_run_that_never_fits_begins_with_fewer(tmp_path, monkeypatch, capfd):
    make = PPO.__init__

    def limited_init(learner: Any, worlds: Worlds, *arguments: Any, **options: Any) -> None:
        if worlds.num_envs > 2:
            raise ERRORS["torch"]
        make(learner, worlds, *arguments, **options)

    monkeypatch.setattr(PPO, "__init__", limited_init)
    run = small_run(tmp_path, steps=64)
    error = " ".join(capfd.readouterr().err.split())
    assert "memory ran out with 8 environments (2.00 GiB could not be allocated): it begins with 4" in error
    assert "memory ran out with 4 environments (2.00 GiB could not be allocated): it begins with 2" in error
    assert checkpoint.latest_valid(run.path).plain["learner"]["num_envs"] == 2
    # Resuming makes 2 environments, not the 8 of the configuration.
    assert resume(run.path, steps=128, mode="quiet", evaluate=False).status == "finished"


def test_going_on_with_fewer_may_lack_memory_too(tmp_path, monkeypatch, capfd):
    limited(monkeypatch, 4, MemoryError(), from_step=320)
    make = PPO._make_rollout

    def limited_rollout(learner: PPO) -> Any:
        if learner.steps == 256 and learner.worlds.num_envs == 4:
            raise ERRORS["torch"]
        return make(learner)

    monkeypatch.setattr(PPO, "_make_rollout", limited_rollout)
    run = small_run(tmp_path)
    assert "it goes on from step 256 with 2." in " ".join(capfd.readouterr().err.split())
    last = checkpoint.latest_valid(run.path)
    assert (last.steps, last.plain["learner"]["num_envs"]) == (640, 2)


def test_a_signal_that_came_before_is_not_forgotten(tmp_path, monkeypatch):
    limited(monkeypatch, 4, MemoryError(), from_step=320)
    iterate = Session._iterate

    def signalled(session: Session) -> None:
        if session.learner.steps == 320 and session.learner.worlds.num_envs == 8:
            signal.raise_signal(signal.SIGTERM)
        iterate(session)

    monkeypatch.setattr(Session, "_iterate", signalled)
    run = small_run(tmp_path)
    assert run.status == "interrupted"
    assert checkpoint.latest_valid(run.path).steps == 256


def test_a_resumed_run_that_does_not_fit_any_more_says_so(tmp_path, monkeypatch):
    run = small_run(tmp_path, steps=128)

    def none_left(*arguments: Any, **options: Any) -> None:
        raise ERRORS["torch"]

    monkeypatch.setattr(PPO, "__init__", none_left)
    with pytest.raises(
        OutOfMemoryError, match=r"ran out with 8 environments \(2\.00 GiB .*, which its checkpoint has\. Free some"
    ):
        resume(run.path, steps=256, mode="quiet", evaluate=False)


def test_where_there_is_no_fewer_it_says_what_takes_less(tmp_path, monkeypatch):
    limited(monkeypatch, 0, MemoryError("8 bytes"))
    said = r"ran out with 1 environments \(8 bytes\).*needs 1\. What takes less: shorter"
    with pytest.raises(OutOfMemoryError, match=said):
        small_run(tmp_path, num_envs=2)


def learning_fails(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    """Let gradients of more samples than this fail."""
    add: Callable[..., torch.Tensor] = AutogradEngine._add_gradient

    def limited_add(engine: Any, rows: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if len(rows) > samples:
            raise ERRORS["torch"]
        return add(engine, rows, *arguments)

    monkeypatch.setattr(AutogradEngine, "_add_gradient", limited_add)


WIDE = {"ppo.engine": "autograd", "ppo.rollout_length": 64, "ppo.minibatches": 2, "steps": 1536}


def test_where_learning_fails_minibatches_are_split_instead(tmp_path, monkeypatch, capfd):
    whole = small_run(tmp_path / "whole", **WIDE)
    with monkeypatch.context() as patch:
        learning_fails(patch, 64)
        split = small_run(tmp_path / "split", **WIDE)
    told = " ".join(capfd.readouterr().err.split())
    assert "memory ran out with 8 environments" in told
    assert "at step 0: it goes on from step 0 with as many, and learns from each minibatch in 2 parts" in told
    assert "in 4 parts whose gradients are added up, which is the same update." in told
    last = checkpoint.latest_valid(split.path)
    assert (last.steps, last.plain["learner"]["num_envs"], last.plain["learner"]["parts"]) == (1536, 8, 4)
    tensors, wanted = last_tensors(split), last_tensors(whole)
    for name, tensor in wanted.items():
        if name.startswith("policy."):
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-5, msg=name)
    # A resumed run knows the parts that fit.
    with monkeypatch.context() as patch:
        learning_fails(patch, 64)
        resume(split.path, steps=2048, mode="quiet", evaluate=False)
    assert "memory ran out" not in capfd.readouterr().err


def test_batch_norms_see_whole_minibatches(tmp_path, monkeypatch, capfd):
    learning_fails(monkeypatch, 128)
    run = small_run(tmp_path, **{**WIDE, "network.kind": "mlp_batch_norm"})
    assert "it goes on from step 0 with 4." in " ".join(capfd.readouterr().err.split())
    assert checkpoint.latest_valid(run.path).plain["learner"]["num_envs"] == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_gpu_with_little_memory_goes_on_with_less(engine, tmp_path, monkeypatch, capfd):
    """Of what the training needs, as planned, torch is given a third."""
    settings = {"device": "cuda", "num_envs": 16384, "steps": 16384 * 16 * 6, "ppo.rollout_length": 16}
    settings |= {
        "ppo.engine": engine,
        "network.hidden": (256, 256),
        "market.windows": 16,
        "evaluation.every_steps": None,
    }
    config = load_run_config("smoke", tiny(tmp_path, **settings))
    market = setup.build_market(config)
    needs = plan.measured_needs(config, market, "cuda")[plan.GPU]
    monkeypatch.setattr(plan, "check_that_it_fits", lambda *arguments: None)
    memory.give_back("cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + needs.bytes(16384) / 3
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        run = small_run(tmp_path, **settings)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        memory.give_back("cuda")
    last = checkpoint.latest_valid(run.path)
    told = " ".join(capfd.readouterr().err.split())
    assert last.steps == settings["steps"]
    assert "memory ran out with 16,384 environments (" in told
    left, parts = last.plain["learner"]["num_envs"], last.plain["learner"].get("parts", 1)
    assert left < 16384 or parts > 1
    assert left == 16384 or f" with {left:,}." in told


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpus_needs_are_known_before(tmp_path):
    """Two small trials foresee a larger training; one that is too large is refused with a number that fits."""
    settings = {"device": "cuda", "num_envs": 65536, "steps": 10**9, "ppo.rollout_length": 16, "market.windows": 16}
    config = load_run_config("smoke", tiny(tmp_path, **settings))
    market = setup.build_market(config)
    line = plan.measured_needs(config, market, "cuda")[plan.GPU]
    found = plan._trial_bytes(config, market, "cuda", 65536)[plan.GPU]
    assert line.bytes(65536) == pytest.approx(found, rel=0.25)
    with pytest.raises(ConfigError, match=r"of the GPU's memory .* may be taken \(vector.max_memory\)\. At most about"):
        small_run(tmp_path, **settings, **{"vector.max_memory": int(found / 2**21)})
    chosen, told = plan.with_num_envs(load_run_config(config, {"num_envs": "auto"}), market)
    assert chosen.num_envs >= 64
    assert "; at most " in told
