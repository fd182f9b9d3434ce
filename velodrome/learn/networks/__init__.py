"""From observations to features: layers, trunks, one network for every instrument, Q-networks."""
