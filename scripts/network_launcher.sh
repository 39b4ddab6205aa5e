#!/usr/bin/env bash
# Stands in for ssh between the hosts of network_hosts.py: network_launcher.sh [-x] ADDRESS COMMAND...
# It is called in the namespace of one of them, whose name tells those of the others.
set -euo pipefail
while [[ ${1:-} == -* ]]; do shift; done
address=$1 && shift
here=$(ip netns identify $$)
exec ip netns exec "${here%-*}-$((${address##*.} - 1))" sh -c "$*"
