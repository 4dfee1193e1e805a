"""One node of a cluster: its scheduler, its launcher, its call server and its share of files."""
