"""How many environments, watched and shared: monitor, pool, autoscale, autotune."""
