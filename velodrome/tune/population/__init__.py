"""Population-based training: agents that train side by side, of which the worst go on as the best do, told otherwise.

Read `evolution` (who gives way to whom, and what is tried next: numbers alone), `kept` (what is written down of each
round), then `population` (the runs).
"""
