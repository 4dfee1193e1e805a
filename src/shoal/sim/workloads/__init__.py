"""The workloads of the papers, rebuilt from what they print: `registry` names them, a module per family makes them."""
