"""The whole thing on one machine, for real: `leasekeeper demo`. Servers, agents and sidecars are
the ones that run in a cluster, each a process of its own.
"""
