"""The cli room: `onward ...`, the commands people type.

Each command reads its arguments into one frozen dataclass, reports all that is wrong with them at once, and hands over
to the room that does the work. It is not a place for behaviour: what can be decided belongs to `core`, what can be done
belongs to the agent, the manager or the library.
"""
