"""How a policy in CAGE-2 is evaluated. Read `policies` (simple ones to beat), then `official` (the table of scores)."""
