#!/bin/bash
# On the GPU machine, from the folder that was carried (made by stage.sh):
#   go.sh PLAN [SECONDS]   unpack what is new, start plans/PLAN.py in the background, wait (SECONDS, default 540), collect
#   go.sh - [SECONDS]      go on waiting, collect
#   go.sh part FILE        keep a part of FlashAttention 3's library (fa3_parts.sh); with the last one, put it together
# Each new plan gets its own folder /tmp/o/PLAN; nothing of an earlier one is lost.  PLAN_SECONDS: what the plan may take.
# What was found goes to $OUT (default /tmp/back) in pieces of 15 MB: cat o.tgz.* | tar -xz
set -u
export SG=${SG:-/tmp/sg}; O=${O:-/tmp/o}; K=${K:-/tmp/kit}; HERE=$(cd "$(dirname "$0")" && pwd); BACK=${OUT:-/tmp/back}; mkdir -p "$O" "$BACK"
if [ "$1" = part ]; then
  mkdir -p "$SG/fa3" && cp "$2" "$SG/fa3/" || exit 1
  [ "$(ls "$SG"/fa3/part_0? | wc -l)" = 3 ] || exit 0
  cat "$SG"/fa3/part_0? | xz -dc -T4 > "$SG/site/sgl_kernel/flash_ops.tmp" && mv "$SG/site/sgl_kernel/flash_ops.tmp" "$SG/site/sgl_kernel/flash_ops.abi3.so" && echo "FlashAttention 3 is in place"
  exit
fi
if [ "$1" != - ]; then
  "$HERE/unpack.sh" || exit 1
  # the plan must survive the next call's transfer, so it runs from a copy
  [ "$HERE" = "$K" ] || { rm -rf "$K"; mkdir -p "$K" && (cd "$HERE" && cp -r go.sh unpack.sh drive.py kit kernels models plans plugin product "$K/"); } || exit 1
  rm -rf "${O:?}/$1"; mkdir -p "$O/$1"; echo "$1" > "$O/current"
  (cd "$K" && exec setsid nohup python3 -B drive.py "plans/$1.py" "$O/$1" --seconds "${PLAN_SECONDS:-540}" > "$O/$1/drive.log" 2>&1 & echo $! > "$O/$1/pid")
fi
P=$O/$(cat "$O/current"); end=$(($(date +%s) + ${2:-540}))
running() { [ ! -e "$P/DONE" ] && kill -0 "$(cat "$P/pid")" 2>/dev/null; }
while running && [ "$(date +%s)" -lt $end ]; do sleep 1; done
tail -45 "$P/drive.log"; nvidia-smi --query-gpu=memory.used,clocks.sm,temperature.gpu --format=csv,noheader 2>/dev/null
rm -f "$BACK"/o.tgz.*; tar -cz --exclude='*.safetensors' -C "$(dirname "$O")" "$(basename "$O")" 2>/dev/null | split -b 15000000 -d - "$BACK/o.tgz."; ls -l "$BACK"
if [ -e "$P/DONE" ]; then echo "DONE: $(basename "$P")"; elif running; then echo "still running: $(basename "$P")"; else echo "the driver ended without DONE"; exit 1; fi
