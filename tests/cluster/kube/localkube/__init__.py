"""A real Kubernetes on one machine, for the tests. See README.md in the folder above."""
