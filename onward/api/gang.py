"""What pods say about their gang and their place, by annotation. Written by operators, read by the scheduler."""

GROUP = "scheduling.volcano.sh"
VERSION = "v1beta1"

GROUP_NAME = "scheduling.k8s.io/group-name"  # the PodGroup of a pod, in its namespace
VOLCANO_GROUP_NAME = "scheduling.volcano.sh/group-name"  # the same
TASK_SPEC = "volcano.sh/task-spec"  # which of the group's tasks (replica types) it is

PREVIOUS_NODE = "onward.dev/previous-node"  # where it was before: taken when it fits, since its image is there
AVOID_NODES = "onward.dev/avoid-nodes"  # list with commas: taken only when no other node fits
EXCLUDE_NODES = "onward.dev/exclude-nodes"  # list with commas: never taken
