"""Talking to Kubernetes: a client, an informer with indices, a work queue, a leader lease, an event recorder.

Any Kubernetes, ours on one machine included. Objects stay plain dictionaries, so that a field nobody here knows is
never dropped when an object is written back. Transport is aiohttp; there is no code generation and no class per kind.
What it is not: a framework that calls you. Each piece is used by itself.
"""
