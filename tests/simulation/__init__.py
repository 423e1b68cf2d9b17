"""A seeded simulator around the real `core`, `ManagerLogic`, `AgentLogic` and `GenerationStore`.

One `random.Random(seed)` and one virtual clock drive everything: a network that delays, loses, repeats and reorders,
managers that die, ranks that behave as `onward/train` does, and faults at named points of their lives. `promises.py`
looks after every event. `python -m tests.simulation SEED --trace` replays a seed.

Nodes are lost with all that is on them, links are cut and heal, every agent can host a manager and keeps local state
for the ranks of another. A node is called sub-healthy, and somebody follows its ranks and takes over (`draw_switch`, in
seeds of its own). Jobs go on with fewer ranks and grow back (`draw_elastic`). Not simulated: the bytes on the wire
(messages are passed as objects), processes without pages (a full /dev/shm), nodes that are told to leave, published
faults of other levels, and torch itself.
"""
