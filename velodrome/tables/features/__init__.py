"""Features of bars, by name or as functions: what each is, how its name is parsed and how it is computed.

Read `rolling`, the loops; `indicators`, which are made of them; `clock`, the time of day; `families`, the table of all
names; `features`, which parses and computes; `cross_section`, which compares instruments.
"""
