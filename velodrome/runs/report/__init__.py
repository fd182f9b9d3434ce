"""What people read afterwards: the tables of `velodrome runs`, and charts and the HTML page of an evaluation.

Read `speed` (how fast a run was) and `listing` (what `velodrome runs` shows); then `charts` (as Plotly figures),
`portfolio_charts` (those of an account with several instruments), `breakdown_charts` (months, falls and costs),
`episode` (one episode), `report` (the page), `images` (the same figures as PNG files) and `folds` (the windows of a
walk forward).
"""
