#!/bin/bash
# On the GPU machine: several plans side by side, one lane per GPU, each lane one plan after another.
#   lanes.sh start 'OUT=PLAN [VAR=VALUE ...] + OUT=PLAN ...' ['lane of the next GPU' ...]     returns at once
#   lanes.sh wait [SECONDS]                                                                   waits, prints, collects into $OUT
# A lane 'both: OUT=PLAN ...' sees two GPUs and begins when the other lanes have ended.
# Results: /tmp/o/OUT.  PLAN_SECONDS: what one plan may take (default 540).
set -u
export SG=${SG:-/tmp/sg}; O=/tmp/o; K=/tmp/kit; HERE=$(cd "$(dirname "$0")" && pwd); BACK=${OUT:-/tmp/back}; mkdir -p "$O" "$BACK"
lane() {   # GPUS CPUS FIRST_PORT LANE
  local gpus=$1 cpus=$2 port=$3 step words vars
  tr '+' '\n' <<< "$4" | while read -r step; do
    read -r -a words <<< "$step"; vars=("${words[@]:1}"); local out=${words[0]%%=*} plan=${words[0]#*=}
    rm -rf "${O:?}/$out"; mkdir -p "$O/$out"
    env "${vars[@]}" BENCH_GPUS="$gpus" KIT_PORT="$port" taskset -c "$cpus" \
      python3 -B drive.py "plans/$plan.py" "$O/$out" --seconds "${PLAN_SECONDS:-540}" > "$O/$out/drive.log" 2>&1 < /dev/null
  done
}
if [ "$1" = run ]; then   # in the background, by start
  shift; cd "$K" || exit 1; n=0; half=$(($(nproc) / 2)); both=
  for l in "$@"; do
    case $l in both:*) both=${l#both:}; continue ;; esac
    lane $n "$((n * half))-$((n * half + half - 1))" $((31000 + 1000 * n)) "$l" & n=$((n + 1))
  done
  wait; [ -z "$both" ] || lane 0,1 "0-$((2 * half - 1))" 33000 "$both"
  touch "$O/DONE"; exit
fi
if [ "$1" = start ]; then
  shift
  [ -d "$SG/site/sglang" ] || { mkdir -p "$SG" && tar -xJf "$HERE/bundle.tar.xz" -C "$SG" --strip-components=1; } || exit 1
  [ "$HERE" = "$K" ] || { rm -rf "$K"; mkdir -p "$K" && (cd "$HERE" && cp -r go.sh lanes.sh drive.py kit models plans plugin product "$K/"); } || exit 1
  rm -f "$O/DONE"; setsid nohup "$K/lanes.sh" run "$@" > "$O/lanes.log" 2>&1 < /dev/null & sleep 2; echo started; exit
fi
end=$(($(date +%s) + ${2:-540}))
while [ ! -e "$O/DONE" ] && [ "$(date +%s)" -lt $end ]; do sleep 1; done
for log in "$O"/*/drive.log; do echo "== $(basename "$(dirname "$log")")"; tail -${TAIL:-14} "$log"; done; cat "$O/lanes.log"
rm -f "$BACK"/o.tgz.*; tar -cz --exclude=trace -C /tmp o 2>/dev/null | split -b 15000000 -d - "$BACK/o.tgz."; ls -l "$BACK"
[ -e "$O/DONE" ] && echo DONE || echo "still running"
