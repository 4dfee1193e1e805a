"""The workloads of the papers by name; `registry` lists them."""
