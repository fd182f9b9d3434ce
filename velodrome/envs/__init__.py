"""Rules, one world at a time: what an environment is, its generator, the catalogue, and the environments themselves."""
