"""Typed messages between the processes of one job, and the frames that carry them.

Rank, agent and manager meet only here. A frame is a length and a MessagePack body that must decode, strictly, to one
of the structs in `messages`, `peers` or `control`; anything else closes the connection. Nothing executes from the wire.
Not here: what the messages make anybody do.
"""
