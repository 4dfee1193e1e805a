"""Python calls in worker processes: the pool that runs them, and what stands on both sides."""
