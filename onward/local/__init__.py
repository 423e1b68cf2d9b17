"""A Kubernetes on one machine: an API server, and nodes that run pods as processes.

It exists so that job files run on a laptop and in CI, and so that our own Kubernetes tests stand on something real. It
is not a cluster: everything runs on this machine, as the user who started it.
"""
