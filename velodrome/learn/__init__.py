"""Tensors make a better policy: networks, PPO, DQN, and the evaluation of what they learnt."""
