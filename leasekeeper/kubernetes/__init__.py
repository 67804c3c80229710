"""Kubernetes in the lock library: the Lease store, and the small API client that it needs."""
