"""The checkpoints room: what a checkpoint looks like, on disk and in a node's memory.

Ranks fill the memory and load, agents write and publish, people list. They share only these files, so the names, the
manifest and the rules for what counts as valid stand here, once. It is not where anything is decided (`core`), and it
never imports torch.
"""
