#!/bin/bash
# train_start.sh CODE OUTPUT SCRIPT [arguments]: what the sample of the seed calls in each of its pods.
# Where the others are, how many, and what is to be done on a fault stands in the environment that the operator sets.
set -e
code=$1 output=$2 script=$3
shift 3
mkdir -p "$output/$MINDX_TASK_ID"
cd "$code"
exec onward run --dump-dir "$output/$MINDX_TASK_ID" "$script" "$@"
