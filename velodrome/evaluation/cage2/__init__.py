"""How a policy in CAGE-2 is evaluated. Read `official`: the table of scores, and simple policies to beat."""
