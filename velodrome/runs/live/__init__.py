"""The terminal while a run trains.

Read `bottleneck` (what holds the training up), `progress` (how far it is), `page` (what a terminal shows of that) and
`display` (the view that a training is opened in).
"""
