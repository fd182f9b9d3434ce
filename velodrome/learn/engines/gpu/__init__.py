"""PPO's update of plain perceptrons on a GPU: cuBLAS products between a few kernels of our own. Read `kernels`, then
`engine`."""
