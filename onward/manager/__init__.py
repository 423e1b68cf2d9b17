"""One per job: gathers facts from the agents, asks `core`, and turns the answer into orders.

It can be killed at any moment and started again anywhere: agents hold the generation record, the journal is history
and a shortcut. Not here: decisions (`core`), processes (`agent`).
"""
