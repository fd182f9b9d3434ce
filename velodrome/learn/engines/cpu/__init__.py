"""PPO's update of plain perceptrons on the CPU, laid out by hand: tiles of a minibatch that stay in the cache, one
thread per core on different tiles, everything between the matrix products compiled, all parameters in one buffer."""

from velodrome.learn.engines.cpu.network import FusedActorCritic, Losses
from velodrome.learn.engines.cpu.rollout import FlatRollout, WindowedObservations
from velodrome.learn.engines.cpu.serving import cannot_serve

__all__ = ["FlatRollout", "FusedActorCritic", "Losses", "WindowedObservations", "cannot_serve"]
