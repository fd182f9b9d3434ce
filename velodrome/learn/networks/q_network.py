"""The network of Q-learning: a trunk and a value for every action."""

from __future__ import annotations

import gymnasium
from torch import Tensor, nn

from velodrome.errors import ConfigError
from velodrome.learn.actions import distribution_for
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.instruments import InstrumentTrunk
from velodrome.learn.networks.layers import BarEncoding, encode_bars, linear
from velodrome.learn.networks.trunks import RecurrentTrunk, Trunk, UserTrunk, make_trunk
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

HEAD_GAIN = 0.01  # on markets, first values close to 0: rewards are thousandths, and an error of 1 decays slowly


class QNetwork(nn.Module):
    """Values of all actions, straight from the features or as a state's value and what each action adds to it."""

    def __init__(
        self, shape: ObservationShape, space: gymnasium.Space, config: NetworkConfig, *, duelling: bool = False
    ) -> None:
        super().__init__()
        trunk = make_trunk(shape, config)
        if isinstance(trunk, RecurrentTrunk):
            raise ConfigError(
                "network.kind = 'gru': DQN replays single steps and cannot carry memory between them; use 'mlp', "
                "'mlp_batch_norm' or 'conv' with windows that reach back far enough, or algorithm = 'ppo'."
            )
        if isinstance(trunk, InstrumentTrunk):
            raise ConfigError(
                "network.kind = 'instruments': DQN chooses one of several actions, which does not divide by "
                "instrument; use 'mlp', 'mlp_batch_norm' or 'conv', or algorithm = 'ppo'."
            )
        if isinstance(trunk, Trunk):
            spread_out(trunk)
        self.trunk = trunk
        self.actions = action_count(space)
        on_market = bool(shape.windows)
        self.action_head = head(trunk.out_features, self.actions, on_market)
        self.state_head = head(trunk.out_features, 1, on_market) if duelling else None
        own = isinstance(trunk, UserTrunk)  # decides for itself what to do with windows
        # Whether acting and learning differ, as with batch norm. A user's own network may do anything.
        self.acts_otherwise = own or any(isinstance(layer, nn.BatchNorm1d) for layer in trunk.modules())
        self.can_encode_bars = bool(shape.windows) and not own
        self.encoded_width = config.hidden[0]

    def forward(
        self, observation: Observation, bank: WindowBank | None = None, encoding: BarEncoding | None = None
    ) -> Tensor:
        """Return the values of all actions, [n, actions] float32."""
        features = self.trunk(observation, bank, encoding)
        values = self.action_head(features).float()
        if self.state_head is None:
            return values
        # Without the mean taken off, any constant could move between state and actions.
        return values - values.mean(1, keepdim=True) + self.state_head(features).float()

    def encode_bars(self, bank: WindowBank, table: Tensor | None = None) -> BarEncoding:
        """Compute the market's part of the first layer once per bar, into `table` if there is one."""
        assert isinstance(self.trunk, Trunk)
        return encode_bars(self.trunk.first, bank, table)


def spread_out(trunk: nn.Module) -> None:
    """Start the linear layers as torch does, with biases of their own, and not with those of 0 that PPO starts from.

    Units without biases all bend at the origin and hardly tell the states around it apart, as those of CartPole.
    """
    for layer in trunk.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()


def head(inputs: int, outputs: int, on_market: bool) -> nn.Linear:
    """Return the last layer: as torch starts it, but close to 0 on markets.

    Where rewards are whole numbers, a start close to 0 is slow: on Acrobot it was behind (docs/performance.md).
    """
    return linear(inputs, outputs, HEAD_GAIN) if on_market else nn.Linear(inputs, outputs)


def action_count(space: gymnasium.Space) -> int:
    """Return how many actions there are to choose from; anything but a plain choice is refused."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ConfigError(
            f"DQN chooses one of several actions and the action space is {space}; use algorithm = 'ppo', or an "
            f"environment with discrete actions (trading: action = 'levels' or 'brackets')."
        )
    return distribution_for(space).counts[0]  # refuses one that does not count from 0
