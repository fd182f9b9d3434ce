"""Acting and learning of perceptrons on a GPU: cuBLAS products between kernels of our own."""
