"""CUDA kernels of a rollout, one thread per environment or place of a table; each saves many small launches."""

from __future__ import annotations

from velodrome.rollout.both_targets import advantages_of, discounted_of, is_masked, noisy
from velodrome.rollout.launch import Kernel
from velodrome.vector.compile.numba_cuda import cuda

_advantages = cuda.jit(advantages_of, device=True)
_discounted = cuda.jit(discounted_of, device=True)


def _write_advantages(reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage):
    i = cuda.grid(1)
    if i < reward.shape[1]:
        _advantages(i, reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage)


def _write_discounted(reward, terminated, truncated, gamma, carried, returns):
    i = cuda.grid(1)
    if i < reward.shape[1]:
        _discounted(i, reward, terminated, truncated, gamma, carried, returns)


def _count_ended(terminated, truncated, statistics, sums):
    i = cuda.grid(1)
    if i < terminated.shape[0] and (terminated[i] or truncated[i]):
        cuda.atomic.add(sums, 0, 1.0)
        for k in range(statistics.shape[1]):
            cuda.atomic.add(sums, k + 1, statistics[i, k])


def _store_row(
    reward, terminated, truncated, values, cursor, to_reward, to_terminated, to_truncated, to_values, to_cursor, starts
):
    i = cuda.grid(1)
    if i < reward.shape[0]:
        to_reward[i] = reward[i]
        to_terminated[i] = terminated[i]
        to_truncated[i] = truncated[i]
        ended = terminated[i] or truncated[i]
        starts[i] = ended
        if ended:
            to_cursor[i] = cursor[i]
            for k in range(values.shape[1]):
                to_values[i, k] = values[i, k]


def _add_noise(true, scale, key, when, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = noisy(i, true[i], scale[i], key, when)


def _mask_runs(first, count, apart, limit, key, when, out):
    i = cuda.grid(1)
    if i < first.shape[0] and is_masked(i, limit, key, when):
        for k in range(count[i]):
            out[first[i] + k * apart[i]] = 0.0


write_advantages = Kernel(_write_advantages)
write_discounted = Kernel(_write_discounted)
count_ended = Kernel(_count_ended)  # adds the statistics of episodes that ended to the sums
store_row = Kernel(_store_row)  # stores what a step led to; the final observation only where an episode ended
add_noise = Kernel(_add_noise)  # writes a disturbed table from the true one
mask_runs = Kernel(_mask_runs)  # sets some of the runs of a table's floats to 0
