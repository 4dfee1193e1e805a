"""`shoal.Executor`: Python calls as futures, with dependencies between them."""
