"""A Kubernetes to test on, and its parts."""
