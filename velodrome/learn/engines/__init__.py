"""The same update, faster: by autograd, by compiled loops on the CPU, by kernels on the GPU."""
