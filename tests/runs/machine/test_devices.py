"""GPUs by number, and AMD's: what can be seen without two of them, that a number reaches each place where it counts."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import velodrome as vd
from tests.learn.learners import make_ppo, without_times
from tests.markets import small_market
from tests.runs.small_runs import one_thread, tiny  # noqa: F401
from velodrome import doctor
from velodrome.errors import BackendError, ConfigError
from velodrome.learn.engines.autograd import AutogradEngine, Task
from velodrome.learn.engines.choice import cannot_serve
from velodrome.learn.ppo import ppo_loss
from velodrome.rollout import launch
from velodrome.rollout.worlds import RuleWorlds
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.vector import cuda
from velodrome.vector.compile import numba_cuda


def settings(folder: Any, **changed: Any) -> Any:
    return load_run_config("smoke", tiny(folder, **changed))


@pytest.fixture
def two_gpus(monkeypatch):
    """Pretend that torch and Numba see two GPUs, and note which is the current one of each."""
    current = {"torch": [0], "numba": [0]}

    @contextmanager
    def device(chosen):
        before = current["torch"][-1]
        current["torch"].append(chosen.index)
        try:
            yield
        finally:
            current["torch"].append(before)

    fake = SimpleNamespace(
        is_available=lambda: True,
        get_current_device=lambda: SimpleNamespace(id=current["numba"][-1]),
        select_device=lambda number: current["numba"].append(number),
    )
    monkeypatch.setattr(numba_cuda, "cuda", fake)
    for name, value in {"is_available": lambda: True, "device_count": lambda: 2, "device": device}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return current


def test_a_gpu_is_chosen_by_its_number(two_gpus, tmp_path):
    config = settings(tmp_path, device="cuda:1")
    assert config.usable_device() == "cuda:1"
    assert settings(tmp_path, device="auto").usable_device() == "cuda"
    options = setup.environment_options(config, None, 8, "cuda:1")
    assert (options["backend"], options["device"]) == ("cuda", "cuda:1")
    assert RunFacts.of(config, "cuda:1").device == "cuda:1"


def test_a_gpu_that_is_not_there_is_one_sentence(two_gpus, tmp_path):
    told = r"^device = 'cuda:2' cannot be used: torch sees 2 devices, cuda:0 to cuda:1\. Use another, device=cpu or"
    with pytest.raises(BackendError, match=told):
        settings(tmp_path, device="cuda:2").usable_device()
    with pytest.raises(BackendError, match=r"cannot serve on cuda:7: torch sees 2 devices, cuda:0 to cuda:1"):
        vd.make_vec("template", 4, backend="cuda", device="cuda:7")


@pytest.mark.parametrize("device", ["cuda1", "cuda:", "cuda:-1", "gpu", "cuda:x", 1])
def test_what_is_no_device_is_said(device, tmp_path):
    with pytest.raises(ConfigError, match=r"device = .*auto, cpu, cuda or cuda:N"):
        settings(tmp_path, device=device)


def test_a_device_is_for_the_cuda_backend():
    with pytest.raises(ConfigError, match=r"device = 'cuda:1' is for backend='cuda'; native runs on the CPU"):
        vd.make_vec("template", 4, backend="native", device="cuda:1")
    with pytest.raises(ConfigError, match=r"device = 'cpu'; legal: 'cuda', or a GPU by its number"):
        vd.make_vec("template", 4, backend="cuda", device="cpu")


def test_environments_that_contradict_it_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="'native' and device = 'cuda:1' contradict each other"):
        settings(tmp_path, device="cuda:1", **{"vector.env_type": "native"})


def test_it_is_the_current_device_of_torch_and_numba_while_a_run_learns(two_gpus, tmp_path, monkeypatch):
    """Streams, graphs, kernels and memory are the current device's: one place sets it for all of them."""
    config, seen = settings(tmp_path, device="cuda:1"), []

    def make_vec(*arguments: Any, **options: Any) -> Any:
        seen.append((two_gpus["torch"][-1], two_gpus["numba"][-1], options["device"]))
        raise MemoryError

    monkeypatch.setattr("velodrome.vector.make.make_vec", make_vec)
    with pytest.raises(MemoryError), setup.learning_worlds(config, setup.build_market(config), "cuda:1"):
        pass
    assert seen == [(1, 1, "cuda:1")]
    assert (two_gpus["torch"][-1], two_gpus["numba"][-1]) == (0, 0)


def test_streams_are_each_devices_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    launch.own_stream.cache_clear()
    found = {launch.own_stream(device, purpose) for device in (0, 1) for purpose in ("capture", "warm-up")}
    assert len(found) == 4
    assert launch.own_stream(1, "capture") in found
    launch.own_stream.cache_clear()


# AMD's


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.43482", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_on_rocm_environments_stay_on_the_cpu_and_networks_learn_by_autograd(rocm, tmp_path):
    config = settings(tmp_path, device="cuda")
    assert config.usable_device() == "cuda"
    options = setup.environment_options(config, None, 8, "cuda")
    assert options["backend"] == "native"
    assert "device" not in options
    assert not launch.takes_kernels(torch.device("cuda"))
    assert settings(tmp_path, device="auto").usable_device() == "cpu"
    with pytest.raises(BackendError, match="torch sees one device, cuda:0"):
        settings(tmp_path, device="cuda:1").usable_device()
    with pytest.raises(
        BackendError, match=r"built for ROCm, and the kernels of environments are NVIDIA's\. Use backend="
    ):
        vd.make_vec("template", 4, backend="cuda")


def test_the_doctor_says_what_does_not_run_on_rocm(rocm):
    rows = {row.name: row for row in doctor._cuda()}
    assert rows["torch"].status == "note"
    assert rows["torch"].value == "built for ROCm 6.4.43482, 1 device"
    assert "the cuda backend, its compiled engine and CUDA graphs" in rows["torch"].advice
    assert not [row for row in rows.values() if row.status == "problem"]


def test_the_engine_with_kernels_is_not_chosen_on_rocm(rocm):
    learner = make_ppo(worlds())
    task = Task(learner.policy, learner.worlds.bank, learner.config, "tanh", ppo_loss)
    assert "ROCm" in cannot_serve("cuda", task)


def worlds(device: torch.device | None = None) -> RuleWorlds:
    options: dict[str, Any] = {"episode_length": (3, 9), "leverage": 20.0, "seed": 0, "threads": 1}
    market = small_market(bars=60, instruments=2, seed=1)
    return RuleWorlds(vd.make_vec("trading", 6, market=market, observation="cursor", **options), device=device)


def test_environments_that_are_copied_to_a_learner_elsewhere_are_the_same():
    """On this machine the other device is the CPU under another name; copies are made all the same."""
    near, far = (make_ppo(worlds(device), engine="autograd") for device in (None, torch.device("cpu:0")))
    assert isinstance(far.engine, AutogradEngine)
    assert far.worlds.observation.values.data_ptr() != far.worlds.envs.buffers.out.observations.ctypes.data
    for size in (6, 9, 4):
        near.resize(size)
        far.resize(size)
        assert without_times(near.iterate()) == without_times(far.iterate())
    tensors, plain = far.state()
    again = make_ppo(worlds(torch.device("cpu:0")), engine="autograd")
    again.load_state(tensors, plain)
    assert without_times(again.iterate()) == without_times(far.iterate()) == without_times(near.iterate())


def test_a_simulated_gpu_has_one_number(monkeypatch):
    assert cuda.missing_device("cuda", 1) is None
    assert cuda.missing_device("cuda:0", 1) is None
    assert cuda.missing_device("cuda:1", 1) == "torch sees one device, cuda:0"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_run_on_a_numbered_gpu_is_that_on_the_current_one(tmp_path):
    found = []
    for device in ("cuda", "cuda:0"):
        run = vd.train("smoke", mode="quiet", evaluate=True, **tiny(tmp_path / device.replace(":", ""), device=device))
        found.append(run.metrics.filter(run.metrics["name"] == "loss/policy")["value"].to_list())
    assert found[0] == found[1]
