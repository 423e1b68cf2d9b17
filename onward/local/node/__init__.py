"""A node: one process that runs the pods bound to it, and says how they are.

What a kubelet does, for pods that are process trees on this machine. The pods themselves hang on their shims, so this
process can be killed and started again at any moment: it finds them in its directory and goes on.
It does not schedule, and it pulls no images: the machine's own file system is the image.
"""
