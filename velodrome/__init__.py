"""Velodrome trains reinforcement-learning agents on thousands of environments at once."""

__version__ = "0.1.0"
