"""`shoal top`: a run in the terminal, full screen."""
