"""The built-in scheduler: gives pods their nodes, on the one-machine cluster and where there is no gang scheduler.

It watches pods and nodes, asks `core.placement`, and writes bindings. The unit is the gang; a pod by itself is a gang
of one. It keeps nothing on disk: what it decided is in the pods.
"""
