"""The built-in gang scheduler: gives pods their nodes, on the one-machine cluster and where there is no gang scheduler.

It watches pods, nodes, PodGroups and Queues, asks `core.turns`, and writes bindings. The unit is the gang; a pod by
itself is a gang of one. It keeps nothing on disk: what it decided is in the pods, and how far it was in the PodGroup.
It does not evict anybody for the sake of others.
"""
