"""What schedulers of several nodes share: dependency counters, owners, attempts and places of files. Pure.

`interface.Store` is the contract; `memory` keeps it in memory. Stores in Redis and over the network are in
`shoal.cluster.stores`.
"""
