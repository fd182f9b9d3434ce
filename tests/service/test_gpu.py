"""Trainings under a service on a machine with a GPU: who is given one, and who waits for it."""

from __future__ import annotations

import time

import pytest
import torch

from tests.service.conftest import submit
from velodrome.runs.trained import Run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_training_is_given_a_gpu_and_uses_it(serving):
    (found,) = serving.wait(submit(serving, device="cuda"), 240.0)
    (there,) = serving.executor.resources().gpus
    assert (found.status, found.gpu) == ("finished", there.id)
    log = Run.open(found.folder, serving.folder).folder.log_path.read_text()
    assert " on cuda, " in log


def test_a_gpu_that_others_fill_is_not_taken_until_they_are_gone(serving):
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (1 << 30), dtype=torch.uint8, device="cuda")
    job = submit(serving, device="cuda")
    time.sleep(5.0)
    assert serving.job(job).status == "waiting"
    del held
    torch.cuda.empty_cache()
    (found,) = serving.wait(job, 240.0)
    assert found.status == "finished"
