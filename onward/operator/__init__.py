"""One per cluster: turns jobs into pods, services and gangs, replaces pods, and keeps status and events honest.

What is to be done is decided in `core.reconcile`, from what is seen; here are the eyes (`views`, `eyes`), the hands
(`hands`), the way to the managers inside the pods (`link`), and the loop that joins them (`loop`). The operator is the
only one that creates and deletes pods of a job, and it touches nothing that does not name the job as its owner.
What it is not: needed by a running step. Pods train on while it is away.
"""
