"""The live page of a run or of a cluster: a small HTTP server on this machine, and the page in `assets/`."""
