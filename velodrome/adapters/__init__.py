"""The same environments for other libraries (Stable-Baselines3, TorchRL, ElegantRL), and any Gymnasium vector one in.

`to_sb3`, `to_torchrl` and `to_elegantrl` import the library that they are for when they are called, not before. Read
`episode_ends`, `gymnasium`, `library_class`, `sb3`, `tensor_episodes`, `torchrl`, `elegantrl`.
"""

from velodrome.adapters.elegantrl import to_elegantrl
from velodrome.adapters.gymnasium import from_gymnasium
from velodrome.adapters.sb3 import to_sb3
from velodrome.adapters.torchrl import to_torchrl

__all__ = ["from_gymnasium", "to_elegantrl", "to_sb3", "to_torchrl"]
