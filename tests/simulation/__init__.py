"""A seeded simulator around the real `core`, `ManagerLogic`, `AgentLogic` and `GenerationStore`.

One `random.Random(seed)` and one virtual clock drive everything: a network that delays, loses, repeats and reorders,
managers that die, ranks that behave as `onward/train` does, and faults at named points of their lives. `promises.py`
looks after every event. `python -m tests.simulation SEED --trace` replays a seed.

Not simulated: agents that die, the bytes on the wire (messages are passed as objects), processes without pages (a full
/dev/shm), and torch itself. With several nodes the generation store, which today lives in each agent, is one store for
the world, fenced by the asker's agent exactly as `AgentLogic` fences its own.
"""
