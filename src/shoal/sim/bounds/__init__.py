"""How fast a workflow could run at best: a bound that holds, and the one of the MATRIX paper."""
