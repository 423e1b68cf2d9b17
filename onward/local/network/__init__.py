"""Names and service addresses inside the cluster: a DNS server and a forwarder, at addresses that only pods can see.

Their sockets are opened in the switch's network namespace; the process itself stays where the API server is. Pods talk
to each other without it: only a Service's cluster IP and names come here.
"""
