"""What happened: the configuration of a run, its folder, store, metrics, checkpoints, evaluation and report."""
