"""Policy times worlds gives tensors: collection, storage, advantages, replay."""
