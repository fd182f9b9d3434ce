"""Networks from observations to features. Read `layers`, what they are made of; `instruments`, one network for every
instrument; `trunks`, all the others; `q_network`, the values of actions on top of a trunk; `soft_actor_critic`, a
policy over bounded numbers and its critics."""
