"""The Kubernetes API of `onward up`: what kubectl, the Python client and our operator talk to.

One process, one asyncio loop, one SQLite file. Objects are kept in memory as they were last made durable; a write is
answered only when SQLite has it on disk, so kill -9 loses nothing that was acknowledged. What is not supported answers
501 with a sentence; nothing is accepted and then ignored in silence.

It is not a replacement for a cluster's API server: there is one user (admin), no admission webhooks, no aggregation
and no conversion between versions beyond renaming.
"""
