"""Many worlds at once, on CPU cores, on a GPU or in worker processes; `make` and `make_vec` choose. Read `cores`,
`argument_checks`, `seeding` and `messages` when you meet them; then the loop, `batch`, and its memory, `buffers`;
`compile`, which turns rule and loop into machine code; `space_arrays`; `rule_env`, `native`, `cuda` and `single`, the
backends for rules; `infos` and `workers`, for any Gymnasium environment; `make`; `fleet`, which counts, watches and
shares environments; `config`.
"""
