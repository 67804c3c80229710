"""Leasekeeper: leader election as a Kubernetes resource. One pod acts, and everyone can see which."""

__version__ = "0.1.0"
