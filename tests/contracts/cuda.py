"""What an environment's scenarios must do on the CUDA backend: the same as on the CPU, to the bit.

The simulator needs NUMBA_ENABLE_CUDASIM=1 before Numba is imported, hence a process of its own: a test module runs
itself as `python MODULE FILE`, plays its scenarios there and pickles the records.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.contracts.simulator import run_threads_in_turn
from tests.vector.scenarios import Scenario, assert_identical, record


def records_on_cuda(scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """Play every scenario on the CUDA backend; a traceback where one fails."""
    records: dict[str, Any] = {}
    for name, scenario in scenarios.items():
        try:
            records[name] = record(scenario.make("cuda"), scenario)
        except Exception:
            # The other scenarios are still worth knowing; the test of this one shows the traceback.
            records[name] = traceback.format_exc()
    return records


def write_records(scenarios: Mapping[str, Scenario], target: Path) -> None:
    """Play every scenario in this process, which simulates CUDA, and pickle what `records_on_cuda` returns."""
    run_threads_in_turn()
    target.write_bytes(pickle.dumps(records_on_cuda(scenarios)))


def simulated_records(module: str, target: Path) -> dict[str, Any]:
    """Run a test module as a script in the simulator, and return the records that it wrote."""
    answer = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", module, str(target)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return pickle.loads(target.read_bytes())


def assert_as_on_the_cpu(scenario: Scenario, found: Any) -> None:
    """Compare what a device did in a scenario with the native backend, to the bit."""
    assert isinstance(found, list), found
    assert_identical(record(scenario.make("native"), scenario), found)


class CudaContract:
    """What an environment's tests inherit: they name the scenarios, and the file that plays them when it is run."""

    scenarios: ClassVar[Mapping[str, Scenario]]
    module: ClassVar[str]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.scenarios)

    @pytest.fixture(scope="class")
    @classmethod
    def simulated(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        return simulated_records(cls.module, tmp_path_factory.mktemp("cuda") / "records.pickle")

    def test_the_simulated_device_agrees_to_the_bit(self, name, simulated):
        assert_as_on_the_cpu(self.scenarios[name], simulated[name])

    def test_episodes_end_in_every_scenario(self, name, simulated):
        assert any("_final_obs" in step for step in simulated[name])

    @pytest.mark.gpu
    def test_a_gpu_agrees_to_the_bit(self):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        for name, found in records_on_cuda(self.scenarios).items():
            assert_as_on_the_cpu(self.scenarios[name], found)
