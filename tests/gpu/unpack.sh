#!/bin/bash
# Unpack the bundle beside this file to $SG, once, and take over the kernels that were compiled for it.
set -u
SG=${SG:-/tmp/sg}; HERE=$(cd "$(dirname "$0")" && pwd)
[ -d "$SG/site/sglang" ] || { mkdir -p "$SG" && tar -xJf "$HERE/bundle.tar.xz" -C "$SG" --strip-components=1; } || exit 1
[ -d "$HERE/tvm" ] || exit 0
if [ ! -d "$SG/site/sglang/kernels/jit/utils/compile" ]; then   # 0.5.17
  cp -rn "$HERE/tvm/." "$SG/tvm/" 2>/dev/null
elif [ ! -e "$SG/kernels.log" ]; then   # 0.5.23 keys kernels by this machine's compilers
  [ ! -d "$HERE/tvm/flashinfer" ] || { mkdir -p "$SG/site/flashinfer/data/aot" && cp -rn "$HERE/tvm/flashinfer/." "$SG/site/flashinfer/data/aot/"; }
  [ ! -d "$HERE/tvm/triton" ] || { mkdir -p "$SG/triton" && cp -rn "$HERE/tvm/triton/." "$SG/triton/"; }
  PYTHONPATH="$SG/boot:$SG/site" SGLANG_JIT_CACHE_DIR="$SG/jit" python3 -B "$HERE/prebuild/tvm_jit.py" "$HERE/tvm" > "$SG/kernels.log" 2>&1
  tail -25 "$SG/kernels.log"
fi
exit 0
