"""How a rule and a loop become machine code, and where that is kept. Read `assemble` (a rule's functions in place of
the stand-ins), `rehearsal` (a rule from outside, played once before) and `kernel_cache`; `memcpy`, `packing`, `threads`
and `inlining`, what Numba is taught besides, and `taught`, which tries that out; then `cpu_loops` and `playing`, loops
that go on without Python; `numba_cuda` and `cuda_loops`.
"""
