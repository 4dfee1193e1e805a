"""Front ends: they turn what users write into a graph. Reading files and running user code is the engine's part."""
