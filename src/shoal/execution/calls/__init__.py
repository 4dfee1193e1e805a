"""Python calls in worker processes: the pool of workers, its client side, and the code inside a worker."""
