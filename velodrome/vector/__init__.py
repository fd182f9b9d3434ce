"""Many worlds at once: the compiled loops for the CPU and for CUDA, their buffers, and `make` / `make_vec`."""
