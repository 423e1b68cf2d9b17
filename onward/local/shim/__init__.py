"""The shim: one small process per pod, the parent of its containers.

It starts containers in their namespaces, keeps their logs, runs probes and hooks, restarts what should be restarted and
writes down what happened. It knows nothing of Kubernetes' API and talks to nobody but the node agent, through a
directory and a unix socket; so the agent can be killed and replaced while pods run on. It imports only the standard
library, and little of that: there is one for each pod.
"""
