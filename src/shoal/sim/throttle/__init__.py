"""A node that bears only so much, for controllers of concurrency: modelled in virtual time, seeded, without a broker.

`node` is the model, `scenario` the situations, `play` runs controllers against them as a driver would live, `reference`
finds the best fixed number by trying them all.
"""
