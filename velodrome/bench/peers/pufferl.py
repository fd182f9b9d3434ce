"""PufferLib 3.0.0's PPO over a plain environment: PuffeRL, with the settings of the benchmark and without its screen.

Segments have 64 steps, its default, and end there: the last step of each has no advantage. What PPO does not have is
turned off as far as its settings allow: no priorities, no clipping of values, no decay of the rate. Its V-trace stays,
and advantages are found anew for each minibatch, which takes whole segments, with replacement from one to the next.
Steps that only reset an environment, 1 of 1,000, are among its samples.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.pufferlib import FALL_ASLEEP_SECONDS, imported, open_puffer
from velodrome.bench.peers.sb3 import NEVER, timed
from velodrome.bench.timing import Source
from velodrome.bench.trainer import Trainer
from velodrome.vector.cores import available_cores

if TYPE_CHECKING:
    from velodrome.bench.problems.ar1 import TrainProblem

HORIZON = 64  # steps in a segment
NO_LIMIT = 1e9  # of a value's change


def imported_pufferl() -> Any:
    """Return PuffeRL's module, which on import takes Ctrl-C and uncaught exceptions for itself."""
    interrupted, uncaught = signal.getsignal(signal.SIGINT), sys.excepthook
    try:
        return imported("pufferl")
    finally:
        signal.signal(signal.SIGINT, interrupted)
        sys.excepthook = uncaught


@contextlib.contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Undo what is set for all of torch meanwhile: everyone multiplies with the same precision."""
    import torch

    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.deterministic, cudnn.benchmark = flags


def puffer_settings(settings: Any, num_envs: int, seed: int) -> dict[str, Any]:
    """Return the benchmark's settings in PuffeRL's terms."""
    return {
        "env": "velodrome",
        "seed": seed,
        "device": "cpu",
        "torch_deterministic": False,
        "cpu_offload": False,
        "use_rnn": False,
        "compile": False,
        "precision": "float32",
        "data_dir": "",
        "checkpoint_interval": NEVER,
        "total_timesteps": NEVER * settings.batch,
        "batch_size": settings.batch,
        "bptt_horizon": min(HORIZON, settings.batch // num_envs, settings.minibatch),
        "minibatch_size": settings.minibatch,
        "max_minibatch_size": settings.minibatch,
        "update_epochs": settings.epochs,
        "optimizer": "adam",
        "learning_rate": settings.learning_rate,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": settings.adam_epsilon,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "clip_coef": settings.clip,
        "vf_coef": 2.0 * settings.value_weight,  # its own value loss is half the mean squared error
        "vf_clip_coef": NO_LIMIT,
        "ent_coef": 0.0,
        "max_grad_norm": settings.max_gradient_norm,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 0.0,
    }


class PufferTrainer(Trainer):
    """Its `evaluate`, which collects, and its `train`, over one of its vectorisers."""

    def __init__(self, backend: str, problem: TrainProblem, num_envs: int, seed: int) -> None:
        import torch

        from velodrome.rollout.phases import PhaseClock

        settings = problem.settings
        pufferl: Any = imported_pufferl()
        actions: Any = problem.case.env.action_space
        torch.manual_seed(seed)
        self.network = puffer_network(problem.case.floats, int(actions.n), settings.hidden)
        workers = max(one for one in range(1, available_cores() + 1) if num_envs % (2 * one) == 0 or one == 1)
        received = num_envs // 2 if workers > 1 else num_envs
        source = Source([problem.case.plain] * num_envs, seed, workers=workers, received=received)
        envs = open_puffer(source, backend).envs
        self.sleepy = backend == "Multiprocessing"

        class Quiet(pufferl.PuffeRL):
            """One that writes nothing to the screen."""

            def print_dashboard(self, *_: Any, **__: Any) -> None:
                pass

        with torch_as_it_was(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about autocast without CUDA
            self.trainer = Quiet(puffer_settings(settings, num_envs, seed), envs, self.network)
        # Without CUDA it does nothing, and is entered more often than left.
        self.trainer.amp_context = contextlib.nullcontext()
        self.weights, self.clock = list(self.network.parameters()), PhaseClock()
        for name in ("recv", "send"):
            setattr(envs, name, timed(getattr(envs, name), self.clock, "environment"))

    def run(self) -> dict[str, float]:
        self.clock.take()
        with self.clock("inference"):
            self.trainer.evaluate()
        with self.clock("learning"):
            self.trainer.train()
        return self.clock.take()

    def warm_up(self, seconds: float) -> float:
        """Train as others do, then wait until its workers leave the cores alone."""
        found = super().warm_up(seconds)
        self.rest()
        return found

    def time(self, calls: int) -> dict[str, float]:
        """Train as others do, then wait until its workers leave the cores alone."""
        found = super().time(calls)
        self.rest()
        return found

    def rest(self) -> None:
        """Wait, where there are workers."""
        time.sleep(FALL_ASLEEP_SECONDS if self.sleepy else 0.0)

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        import torch

        with torch.no_grad():
            return self.network(torch.from_numpy(observations))[0].argmax(1).numpy()

    def close(self) -> None:
        """End its workers and its thread, without a checkpoint."""
        self.trainer.utilization.stop()
        self.trainer.vecenv.close()


def puffer_network(floats: int, actions: int, hidden: tuple[int, ...]) -> Any:
    """Return an actor and a critic as PuffeRL calls them, with the last layers begun as in its own models."""
    from torch import nn

    layer_init = imported("pytorch").layer_init

    def layers(outputs: int, deviation: float) -> Any:
        widths, parts = (floats, *hidden), []
        for width, following in zip(widths, hidden, strict=False):
            parts += [nn.Linear(width, following), nn.Tanh()]
        return nn.Sequential(*parts, layer_init(nn.Linear(widths[-1], outputs), std=deviation))

    class Network(nn.Module):
        """Logits and values."""

        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = layers(actions, 0.01), layers(1, 1.0)

        def forward(self, observations: Any, state: Any = None) -> tuple[Any, Any]:
            return self.actor(observations), self.critic(observations)

        forward_eval = forward

    return Network()
