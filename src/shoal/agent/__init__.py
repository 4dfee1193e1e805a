"""One node of a cluster: a member of the brokers, a runner, its part of the data, behind one socket."""
