"""Controllers of the one-machine cluster: what kube-controller-manager and kube-scheduler do elsewhere, as far as pods
and services need it. Each watches, decides, writes; none keeps anything that is not in the API.
"""
