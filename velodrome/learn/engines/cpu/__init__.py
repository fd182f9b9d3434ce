"""PPO's update of plain perceptrons on the CPU, laid out by hand: tiles of a minibatch that stay in the cache, one
thread per core on different tiles, everything between the matrix products compiled, all parameters in one buffer.

Read `compiled`, `elementary`, `kernels` and `losses`, the loops; `perceptrons`, the layers they work on and where those
lie; `tile`, `lanes` and `reading`, which `network` puts together; `engine`, what PPO sees. `imitation` has another loss
for the same network, by which a policy is taught a rule before PPO begins.
"""
