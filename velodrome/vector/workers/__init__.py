"""Any Gymnasium environment, many at once: in this process or in workers over shared memory."""
