"""The core room: every decision onward takes, as pure functions of (state, event, now).

It is here that faults are judged, policies chosen and generations opened, so that the same code runs in production, in
the seeded simulator and in a replay, and each answer carries the sentence that explains it. It is not where anything is
carried out: no clock, no I/O, no asyncio, no torch. The manager, the operator and the agent do that.
"""
