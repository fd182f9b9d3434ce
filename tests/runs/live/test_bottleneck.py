"""The sentence about the bottleneck: the right cause for each case, and advice that can be followed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.live.machines import GIB, machine
from velodrome.runs.config.run_config import SPELLINGS, RunConfig
from velodrome.runs.live.bottleneck import RunFacts, find_bottleneck
from velodrome.runs.machine.use import GpuUse, MachineUse

ON_GPU = RunFacts(device="cuda", environment_device="cuda")


def phases(
    environment: float = 0.0, inference: float = 0.0, learning: float = 0.0, other: float = 0.0
) -> dict[str, float]:
    return {"environment": environment, "inference": inference, "learning": learning, "other": other}


def gpu(busy: float | None) -> GpuUse:
    return GpuUse("NVIDIA H200", busy, 12 * GIB, 139 * GIB, 45.0, 300.0)


CASES = {
    "learning on the CPU": (
        phases(1, 9, 87, 3), machine(), RunFacts(),
        "learning", "Learning 87% of the time, all on the CPU: fewer epochs (ppo.epochs), a shared trunk "
        "(network.shared=true) or a machine with a GPU (device=cuda).",
    ),
    "learning on the CPU beside an unused GPU": (
        phases(1, 9, 87, 3), machine(gpu=gpu(0.0)), RunFacts(shared_trunk=True),
        "learning", "Learning 87% of the time, all on the CPU: fewer epochs (ppo.epochs) or device=cuda.",
    ),
    "DQN's learning": (
        phases(1, 9, 87, 3), None, RunFacts(algorithm="dqn"),
        "learning", "Learning 87% of the time, all on the CPU: fewer gradient steps (dqn.updates), smaller batches "
        "(dqn.batch_size) or a machine with a GPU (device=cuda).",
    ),
    "learning on a busy GPU": (
        phases(5, 5, 90, 0), machine(gpu=gpu(0.97)), ON_GPU,
        "learning", "Learning 90% of the time, GPU 97% busy: fewer epochs (ppo.epochs), a shared trunk "
        "(network.shared=true), half precision (ppo.precision=bfloat16) or a smaller network (network.hidden).",
    ),
    "a GPU that waits": (
        phases(30, 30, 40, 0), machine(process_cpu=1.0, machine_cpu=1.1, gpu=gpu(0.3)), ON_GPU,
        "gpu_idle", "GPU 30% busy, the rest of the time it waits for work: more environments (num_envs), longer "
        "rollouts (ppo.rollout_length) or larger batches.",
    ),
    "a GPU that does not say how busy it is": (
        phases(30, 30, 40, 0), machine(gpu=gpu(None)), ON_GPU,
        "none", "No single bottleneck: environment 30%, inference 30%, learning 40%.",
    ),
    "environments on idle cores": (
        phases(60, 20, 20, 0), machine(process_cpu=1.1, machine_cpu=1.2), RunFacts(),
        "environment", "Environment 60% of the time, 1.1 of 8 cores busy: more environments (num_envs) give every core "
        "a share.",
    ),
    "environments on busy cores": (
        phases(60, 20, 20, 0), machine(), RunFacts(),
        "environment", "Environment 60% of the time, 7.5 of 8 cores busy: a machine with a GPU (device=cuda), more "
        "cores, or a shorter window (market.windows).",
    ),
    "environments in Python hold up a GPU": (
        phases(80, 10, 10, 0), machine(process_cpu=1.0, machine_cpu=1.0, gpu=gpu(0.1)),
        RunFacts(device="cuda", rule_environment=False),
        "environment", "Environment 80% of the time, 1.0 of 8 cores busy: a Gymnasium environment in Python; "
        "`velodrome bench vector` compares backends for it (vector.env_type), and a rule for the native backend "
        "(docs/add_an_environment.md) is faster than any.",
    ),
    "inference": (
        phases(20, 60, 20, 0), machine(gpu=gpu(0.9)), ON_GPU,
        "inference", "Inference 60% of the time: more environments per call (num_envs) or a smaller network "
        "(network.hidden).",
    ),
    "outside the phases": (
        phases(10, 10, 20, 60), machine(gpu=gpu(0.1)), ON_GPU,
        "other", "Other 60% of the time, outside the phases (evaluation, checkpoints, logging): evaluate and save less "
        "often (evaluation.every_steps, checkpoint.every_seconds) or do more per iteration (num_envs, "
        "ppo.rollout_length).",
    ),
    "a first start": (
        phases(10, 10, 20, 60), machine(gpu=gpu(0.1)), replace(ON_GPU, compiled=True),
        "other", "Other 60% of the time, outside the phases, where kernels were compiled: the next start finds them "
        "and is faster.",
    ),
    "the disk": (
        phases(10, 10, 20, 60), machine(process_cpu=0.4, machine_cpu=0.5, disk_wait=0.8), RunFacts(),
        "disk", "The disk: 0.8 cores wait for it and 60% of the time is outside the training; save and log less often "
        "(checkpoint.every_seconds, logging.log_every) or put the runs on a faster disk.",
    ),
    "a disk that others wait for": (
        phases(1, 9, 87, 3), machine(disk_wait=0.8), RunFacts(shared_trunk=True),
        "learning", "Learning 87% of the time, all on the CPU: fewer epochs (ppo.epochs) or a machine with a GPU "
        "(device=cuda).",
    ),
    "other processes": (
        phases(1, 9, 87, 3), machine(process_cpu=3.5, machine_cpu=7.9), RunFacts(),
        "processes", "Other processes keep 4.4 of the 8 cores busy, this run 3.5: it is faster alone. Within the run, "
        "learning takes 87% of the time.",
    ),
    "other processes on cores that this one may not use": (
        phases(0, 0, 100, 0), machine(cores=2, process_cpu=2.0, machine_cpu=7.9), RunFacts(shared_trunk=True),
        "learning", "Learning 100% of the time, all on the CPU: fewer epochs (ppo.epochs) or a machine with a GPU "
        "(device=cuda).",
    ),
    "nothing stands out": (
        phases(35, 25, 40, 0), machine(), RunFacts(),
        "none", "No single bottleneck: environment 35%, inference 25%, learning 40%.",
    ),
    "nothing measured": (
        {}, machine(), RunFacts(), "unknown", "Too little was measured to tell what the bottleneck is.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_cause_and_advice(case: str) -> None:
    seconds, use, facts, kind, sentence = CASES[case]
    found = find_bottleneck(seconds, use, facts)
    assert (found.kind, found.sentence) == (kind, sentence)


@given(
    seconds=st.fixed_dictionaries({name: st.floats(0.0, 1e6) for name in phases()}),
    use=st.none() | st.builds(
        machine, process_cpu=st.floats(0, 8), machine_cpu=st.floats(0, 8), disk_wait=st.floats(0, 8),
        gpu=st.none() | st.builds(gpu, st.none() | st.floats(0, 1)),
    ),
    facts=st.builds(
        RunFacts, algorithm=st.sampled_from(["ppo", "dqn"]), device=st.sampled_from(["cpu", "cuda", "cuda:1"]),
        environment_device=st.sampled_from(["cpu", "cuda"]), rule_environment=st.booleans(),
        shared_trunk=st.booleans(), bfloat16=st.booleans(),
    ),
)  # fmt: skip
def test_advice_names_only_settings_that_exist(
    seconds: dict[str, float], use: MachineUse | None, facts: RunFacts
) -> None:
    sentence = find_bottleneck(seconds, use, facts).sentence
    assert sentence.endswith(".")
    for key in re.findall(r"\b([a-z_]+\.[a-z_]+|num_envs|device)\b(?!/)", sentence):
        if key == "add_an_environment.md":
            continue
        model: Any = RunConfig
        for part in SPELLINGS.get(key, key).split("."):
            assert part in model.model_fields, key
            model = model.model_fields[part].annotation
        assert not key.startswith({"ppo": "dqn.", "dqn": "ppo."}[facts.algorithm])
