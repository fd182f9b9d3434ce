"""What is measured and against whom. Every benchmark proves that contenders compute the same before it times them,
lets them take turns, and has the same options, report, table and plot.

`velodrome bench step` steps an environment, `bench train` trains an algorithm, `bench vector` compares vectorisers,
`bench result` times the whole way to a result, `bench scale` says what more cores and ranks bring.

Read `machine`, `options`, `report` and `timing` (who is measured, what is found out, how turns are taken); `render` and
`plot` (how it is shown); `trainer` and `peers` (what trains, and how others do it); `hosts` (contenders with an
interpreter of their own) and `parity` (the proof); `run` (how any benchmark runs). Then the benchmarks: `step` with its
`problems`, one for each environment; `race`, `sgemm` and `train`; `vector`; `result`; `scale`; and `generalise`, which
measures no speed.
"""
