"""How a policy on single instruments is evaluated."""
