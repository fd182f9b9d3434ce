"""Any Gymnasium environment, many at once: in this process or in workers over shared memory. Read `options`, `faults`,
`env_maker`, `batch_arrays` and `values`, which looks at what is returned; `env_host`, which steps environments and
replaces those that fail; `pending`, calls under way; `foreign_env`, what all backends share; `serial`, the shortest;
`worker`, one process; `worker_env`, `process` and `asynchronous`; `remote`, workers on other machines; `measuring` and
`autotune`, which find the fastest.
"""
