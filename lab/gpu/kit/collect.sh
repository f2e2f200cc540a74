#!/bin/bash
# On the machine: collect.sh SECONDS: waits until the campaign is over, or for that long, and brings back what there is.
root=${KIT_ROOT:-/tmp/k}
for _ in $(seq "$1"); do [ -f "$root/done" ] && break; sleep 1; done
cp "$root/campaign.log" "$OUT/"
(cd "$root" && tar -czf "$OUT/results.tar.gz" results logs 2> /dev/null)
tail -n "${2:-60}" "$root/campaign.log"
