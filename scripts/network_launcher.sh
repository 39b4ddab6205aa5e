#!/usr/bin/env bash
# Replaces ssh between the hosts of network_hosts.py: network_launcher.sh [-x] ADDRESS COMMAND...
# It runs in the namespace of one host, and derives the names of the others from its name.
# NETWORK_CORES=0,1: each host has one of these cores.
set -euo pipefail
while [[ ${1:-} == -* ]]; do shift; done
address=$1 && shift
here=$(ip netns identify $$)
host=$((${address##*.} - 1))
IFS=, read -ra cores <<<"${NETWORK_CORES:-}"
pinned=()
if [ "${#cores[@]}" != 0 ]; then pinned=(taskset -c "${cores[host % ${#cores[@]}]}"); fi
exec ip netns exec "${here%-*}-$host" ${pinned[@]+"${pinned[@]}"} sh -c "$*"
