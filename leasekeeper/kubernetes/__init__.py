"""Kubernetes in the lock library: the small API client that the Lease store and the sidecar use."""
