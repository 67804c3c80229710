"""Leasekeeper: leader election as a Kubernetes resource."""

__version__ = "0.1.0"
