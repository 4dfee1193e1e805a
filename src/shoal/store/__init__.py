"""Task metadata that several brokers share: counters, attempts, owners, and where data is."""
