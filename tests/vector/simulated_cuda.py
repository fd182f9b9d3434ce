"""Plays every scenario on the CUDA backend in Numba's simulator and pickles the records.

Run as `python simulated_cuda.py FILE` with NUMBA_ENABLE_CUDASIM=1, which must be set before Numba is imported: hence a
process of its own, one for all scenarios.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.contracts.simulator import run_threads_in_turn
from tests.vector.scenarios import SCENARIOS, record

if __name__ == "__main__":
    run_threads_in_turn()
    records: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            envs = scenario.make("cuda")
            # In the simulator the device's tensors lie in the memory of the CPU.
            assert type(envs).__name__ == "CudaVectorEnv"
            assert str(envs.device) == "cpu"
            records[name] = record(envs, scenario)
        except Exception:
            # The other scenarios are still worth knowing; the test of this one shows the traceback.
            records[name] = traceback.format_exc()
    Path(sys.argv[1]).write_bytes(pickle.dumps(records))
