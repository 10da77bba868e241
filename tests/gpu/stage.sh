#!/bin/bash
# Put what the GPU machine needs into a folder that git ignores:  stage.sh FOLDER [BUNDLE.tar.xz]
# The kit, the product (controller, policies, sglang_hooks and a dist-info that names its plugin) and, if given, the bundle.
# TVM=FOLDER: more compiled kernels than the bundle has (prebuild/tvm_jit.py); for 0.5.23 with FOLDER/triton and FOLDER/flashinfer.
# Without a bundle (a machine that has it unpacked already, or a run on the CPU engine) FOLDER is about 1 MB.
set -eu
[ $# -ge 1 ] || { sed -n 2,5p "$0"; exit 2; }
HERE=$(cd "$(dirname "$0")" && pwd); ROOT=$(cd "$HERE/../.." && pwd); mkdir -p "$1"; D=$(cd "$1" && pwd)
rm -rf "$D/product" "$D/kit" "$D/kernels" "$D/plans" "$D/plugin" "$D/models"
cp -r "$HERE"/{go.sh,unpack.sh,lanes.sh,drive.py,kit,kernels,models,plans,plugin} "$D/"
cp "$ROOT/tests/engine/oracle_drafts.py" "$D/plugin/"; info="$D/plugin/oracle_drafts-0.0.1.dist-info"; mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: oracle-drafts\nVersion: 0.0.1\n' > "$info/METADATA"
printf '[sglang.srt.plugins]\noracle_drafts = oracle_drafts:register\n' > "$info/entry_points.txt"
cp "$ROOT/tests/engine/make_models.py" "$D/models/make_known.py"
mkdir -p "$D/product"; cp -r "$ROOT"/{controller,policies,sglang_hooks} "$D/product/"
mkdir -p "$D/product/tests/engine" "$D/product/tests/benchmarks"  # what the plan after_cold trains and measures with
cp "$ROOT/tests/__init__.py" "$D/product/tests/"; cp "$ROOT/tests/engine/make_models.py" "$D/product/tests/engine/"
cp -r "$ROOT/tests/benchmarks/__init__.py" "$ROOT/tests/benchmarks/after_cold" "$D/product/tests/benchmarks/"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$ROOT/sglang_hooks/__init__.py")
info="$D/product/specgov-$version.dist-info"; mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: specgov\nVersion: %s\n' "$version" > "$info/METADATA"
printf '[sglang.srt.plugins]\nspecgov = sglang_hooks.plugin:register\n' > "$info/entry_points.txt"
[ -z "${TVM:-}" ] || { rm -rf "$D/tvm"; cp -r "$TVM" "$D/tvm"; mkdir -p "$D/prebuild"; cp "$HERE/prebuild/tvm_jit.py" "$D/prebuild/"; }
find "$D" -name __pycache__ -prune -exec rm -rf {} +
[ $# -lt 2 ] || cp "$2" "$D/bundle.tar.xz"
du -sh "$D"
