"""A seeded simulator around the real `core`, `ManagerLogic`, `AgentLogic` and `GenerationStore`.

One `random.Random(seed)` and one virtual clock drive everything: a network that delays, loses, repeats and reorders,
managers that die, ranks that behave as `onward/train` does, and faults at named points of their lives. `promises.py`
looks after every event. `python -m tests.simulation SEED --trace` replays a seed.

Nodes are lost with all that is on them, links are cut and heal, every agent can host a manager and keeps local state
for the ranks of another. Not simulated: the bytes on the wire (messages are passed as objects), processes without pages
(a full /dev/shm), nodes that are told to leave, elastic training, hot switch, published faults, and torch itself.
"""
