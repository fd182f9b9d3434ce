"""How a policy on a basket is evaluated."""
