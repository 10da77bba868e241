#!/bin/bash
# On the GPU machine: several plans side by side, one lane per GPU, each lane one plan after another.
#   lanes.sh start 'OUT=PLAN [VAR=VALUE ...] + OUT=PLAN ...' ['lane of the next GPU' ...]     returns at once
#   lanes.sh wait [SECONDS]                                                                   waits, prints, collects into $OUT
#   lanes.sh stop                                                                             ends the lanes and their servers
# A lane 'first: OUT=PLAN ...' sees all GPUs; these run before the others, side by side, each on its share of the
# CPUs (AFTER=/tmp/o/OUT/DONE makes one measure when another has ended).  A lane 'last: ...' sees all and comes last.
# Results: /tmp/o/OUT; a profiler's traces, OUT/trace, come back in a file of their own unless it has more than 15 MB.
# FOR=SECONDS in a step: what it may take (default: PLAN_SECONDS, 540); HOLD_S=SECONDS for `start`: when all must
# have ended.  A step that overruns is killed with its servers; a step without time is left out.
set -u
export SG=${SG:-/tmp/sg} O=${O:-/tmp/o} K=${K:-/tmp/kit}; HERE=$(cd "$(dirname "$0")" && pwd); BACK=${OUT:-/tmp/back}; mkdir -p "$O" "$BACK"
GPUS=${GPUS:-$(nvidia-smi -L 2>/dev/null | wc -l)}
end_all() { for pid in "$@"; do [ ! -e "$pid" ] || { echo "ending $pid"; kill -9 -- "-$(cat "$pid")"; rm -f "$pid"; }; done; }
step() {   # GPUS CPUS FIRST_PORT OUT=PLAN [VAR=VALUE ...]
  local gpus=$1 cpus=$2 port=$3 out=${4%%=*} plan=${4#*=} seconds left; shift 4
  seconds=$(env "$@" bash -c 'echo ${FOR:-${PLAN_SECONDS:-540}}'); left=$((END - $(date +%s)))
  rm -rf "${O:?}/$out"; mkdir -p "$O/$out"
  [ "$left" -ge "$seconds" ] || seconds=$left
  [ "$seconds" -ge "${LEAST_S:-100}" ] || { echo "$out: left out, $left s are left"; touch "$O/$out/DONE"; return; }
  env "$@" BENCH_GPUS="$gpus" KIT_PORT="$port" taskset -c "$cpus" timeout --foreground -k 5 $((seconds + 40)) \
    python3 -B drive.py "plans/$plan.py" "$O/$out" --seconds "$seconds" > "$O/$out/drive.log" 2>&1 < /dev/null
  local status=$?; echo "$(date +%H:%M:%S) $out: exit status $status"
  end_all "$O/$out"/*.pid
  touch "$O/$out/DONE"
}
lane() {   # GPUS CPUS FIRST_PORT LANE
  local words one
  while read -r one; do
    read -r -a words <<< "$one"; step "$1" "$2" "$3" "${words[@]}"
  done < <(tr '+' '\n' <<< "$4")
}
side_by_side() {   # GPUS_OF_EACH ('' for one each) LANE...: the CPUs in equal shares; ports below those of clients
  local gpus=$1 n=0 share l; shift
  [ $# -gt 0 ] || return 0
  share=$(($(nproc) / $#)); [ "$share" -ge 1 ] || share=1
  for l in "$@"; do
    lane "${gpus:-$n}" "$((n * share % $(nproc)))-$(((n * share + share - 1) % $(nproc)))" $((20000 + 1000 * n + ${#gpus} * 50)) "$l" & n=$((n + 1))
  done
  wait
}
if [ "$1" = run ]; then   # in the background, by start
  shift; cd "$K" || exit 1; all=$(seq -s, 0 $((GPUS - 1))); first=() last=() each=()
  for l in "$@"; do case $l in first:*) first+=("${l#first:}") ;; last:*) last+=("${l#last:}") ;; *) each+=("$l") ;; esac; done
  side_by_side "$all" "${first[@]}"; side_by_side "" "${each[@]}"; side_by_side "$all" "${last[@]}"
  touch "$O/DONE"; exit
fi
if [ "$1" = stop ]; then end_all "$O/lanes.pid" "$O"/*/*.pid; exit; fi
if [ "$1" = start ]; then
  shift
  "$HERE/unpack.sh" || exit 1
  [ "$HERE" = "$K" ] || { rm -rf "$K"; mkdir -p "$K" && (cd "$HERE" && cp -r go.sh unpack.sh lanes.sh drive.py kit kernels models plans plugin product "$K/"); } || exit 1
  export END=$(($(date +%s) + ${HOLD_S:-86400}))
  rm -f "$O/DONE"; setsid nohup "$K/lanes.sh" run "$@" > "$O/lanes.log" 2>&1 < /dev/null &
  echo $! > "$O/lanes.pid"; sleep 2; echo started; exit
fi
end=$(($(date +%s) + ${2:-540}))
while [ ! -e "$O/DONE" ] && [ "$(date +%s)" -lt $end ]; do sleep 1; done
for log in "$O"/*/drive.log; do echo "== $(basename "$(dirname "$log")")"; tail -"${TAIL:-14}" "$log" | cut -c1-220; done; cat "$O/lanes.log"
nvidia-smi --query-gpu=index,memory.used,utilization.gpu --format=csv,noheader 2>/dev/null
rm -f "$BACK"/o.tgz.* "$BACK/traces.tgz"
BACK=$(cd "$BACK" && pwd); cd "$(dirname "$O")" || exit 1; o=$(basename "$O")
nice -n 19 tar -cz --anchored --exclude="$o/*/trace" --no-anchored --exclude='*.safetensors' "$o" 2>/dev/null | split -b 15000000 -d - "$BACK/o.tgz."
if [ -n "$(find "$o" -path "$o/*/trace/*" -type f)" ]; then
  find "$o" -path "$o/*/trace/*" -type f -print0 | nice -n 19 tar -cz --null -T - -f "$BACK/traces.tgz"
  [ "$(stat -c %s "$BACK/traces.tgz")" -le "${TRACES_B:-15000000}" ] || { echo "traces.tgz is too large to come back"; rm "$BACK/traces.tgz"; }
fi
ls -l "$BACK"
[ -e "$O/DONE" ] && echo DONE || echo "still running"
