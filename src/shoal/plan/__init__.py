"""What a run has to do: the identity of tasks across runs, and the verdict on each of them with its reason."""
