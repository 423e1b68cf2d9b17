"""Inside the user's process: step transactions, groups that can be rebuilt, and protected state.

A rank knows steps, groups and state, and decides nothing: it reports where it stands and does what its agent passes
on. This is the only room (with the warm parent) that imports torch. Not here: who is restarted, when, and why.
"""
