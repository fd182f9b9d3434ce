"""How a policy in CAGE-2 is evaluated."""
