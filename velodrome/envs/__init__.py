"""Rules, one world at a time. An environment says what one world does; `velodrome.vector` runs many of them.

Read `contract` (what an environment is), `rng`, `parameters` and `_template` (the smallest environment); `elementary`
(the same bits on every machine), `terms` (parameters drawn per episode) and `market` (what environments on prices
share); `trading`, `portfolio` and `cage2`; `catalog`, which knows them by name.
"""
