"""Contenders with an interpreter of their own. Some fork their workers, which only a fresh process without threads may;
here each has processor time and memory to itself, and one that fails or hangs takes nobody with it. Read
`environments`, what is stepped; `batches`, how each contender steps it; `host`, the interpreter and the parent's hold
on it.
"""
