#!/bin/bash
# On the machine: receive.sh PARCEL-FOLDER [SECONDS-LEFT]: takes one parcel in; the first one also starts the campaign.
# SECONDS-LEFT is what the lender says is left; the campaign ends 25 seconds before that.
set -e
root=${KIT_ROOT:-/tmp/k}
mkdir -p "$root"
if [ -d "$1/kit" ]; then cp -r "$1/kit" "$root/"; fi
if [ -n "$2" ]; then python3 -c "import sys, time; print(time.time() + float(sys.argv[1]) - 25)" "$2" > "$root/deadline"; fi
export PYTHONPATH="$root:$PYTHONPATH"
python3 -m kit.receive "$1" "$root"
if [ -d "$1/kit" ]; then setsid nohup python3 -m kit.campaign > "$root/campaign.log" 2>&1 < /dev/null & fi
sleep 0.2
tail -n 4 "$root/campaign.log" 2> /dev/null || true
