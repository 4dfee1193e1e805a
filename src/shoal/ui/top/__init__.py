"""`shoal top`: full-screen display of a run in the terminal."""
