"""Nets at work: a flow that decides, calls on nodes that compute, a ledger from which a killed run goes on.

`driver` is the loop, `journal` the ledger of a net, `work` what a node is sent, `run` what a program holds of a net
under way. What a net is and means is in `shoal.flow.net`; where calls run is up to the executor.
"""
