"""One per pod or machine: starts ranks, watches them, reports, obeys.

`logic` decides nothing but bookkeeping and does no I/O; `launcher` is the process around it. The agent never imports
torch: it must stay small, start at once and survive whatever a training process does. Not here: which rank is
restarted and why (`manager`, through `core`).
"""
