#!/bin/bash
# Build bundle.tar.xz (about 45 MB; holds one folder, sg): SGLang and the Python packages that the GPU machine lacks.
#
#   [SGLANG=0.5.17] build_bundle.sh OUTDIR [WORKDIR]
#
# SGLANG  the release: one of the folders of releases/, which say what it takes (default: 0.5.17)
# Runs on the preparation machine: any Python with pip (3.11 is fine; the wheels taken are those for 3.12), patch, strip, xz.
# WORKDIR (default: a fresh temporary folder) keeps the downloaded wheels, about 460 MB: give the same one again to skip the download.
# PIP     pip's command                                                        (default: python3 -m pip)
# CACHES  an older bundle.tar.xz whose JIT caches are taken over               (default: none; see prebuild/)
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,11p "$0"; exit 2; }
HERE=$(cd "$(dirname "$0")" && pwd); mkdir -p "$1"; OUT=$(cd "$1" && pwd)
W=${2:-$(mktemp -d)}; mkdir -p "$W/wheels"; W=$(cd "$W" && pwd)
PIP=${PIP:-python3 -m pip}; CACHES=${CACHES:-none}; SGLANG=${SGLANG:-0.5.17}; R=$HERE/releases/$SGLANG
[ -e "$R/release.sh" ] || { echo "SGLANG must be one of $(ls "$HERE/releases" | xargs), got $SGLANG" >&2; exit 2; }
EMPTY=(); . "$R/release.sh"   # KERNEL, FLASHINFER, LEAVE_OUT, EMPTY, ANY_TOKENIZERS
SG=$W/sg; S=$SG/site; rm -rf "$SG"; mkdir -p "$S"
for t in patch strip xz tar; do command -v $t >/dev/null || { echo "missing: $t" >&2; exit 1; }; done

# pip matches the N of manylinux_2_N exactly, so every N is named
TARGET=(--only-binary=:all: --no-deps --implementation cp --python-version 3.12)
for n in $(seq 39 -1 5); do TARGET+=(--platform manylinux_2_${n}_x86_64); done
TARGET+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)

echo "== wheels -> $W/wheels"
$PIP download -q --disable-pip-version-check "${TARGET[@]}" -d "$W/wheels" -r "$R/requirements.txt" "sglang==$SGLANG" "sglang-kernel==$KERNEL" "flashinfer-python==$FLASHINFER"

echo "== packages -> $S"
$PIP install -q --disable-pip-version-check --no-index --find-links "$W/wheels" "${TARGET[@]}" --no-compile --target "$S" -r "$R/requirements.txt"

# The three big ones are unpacked without the parts that this use never touches.
unpack() {   # WHEEL PATTERN_TO_LEAVE_OUT...
  python3 - "$S" "$@" <<'PY'
import fnmatch, os, sys, zipfile
dest, whl, skip = sys.argv[1], sys.argv[2], sys.argv[3:]
z = zipfile.ZipFile(whl)
for i in z.infolist():
    if any(fnmatch.fnmatch(i.filename, p) for p in skip): continue
    p = z.extract(i, dest)
    if not i.is_dir() and i.external_attr >> 16 & 0o111: os.chmod(p, 0o755)
PY
}
unpack "$W/wheels/sglang-$SGLANG"-*.whl "${LEAVE_OUT[@]}"
unpack "$W/wheels/sglang_kernel-$KERNEL"-*.whl '*flash_ops*' '*flashmla_ops*' '*sm100*' '*infllm_ops*' 'triton_kernels/*'
unpack "$W/wheels/flashinfer_python-$FLASHINFER"-*.whl 'flashinfer/data/cutlass/*' 'flashinfer/data/cccl/*' 'flashinfer/data/spdlog/*' "${LEAVE_OUT[@]}"
for folder in "${EMPTY[@]}"; do mkdir -p "$S/$folder" && touch "$S/$folder/.keep"; done

echo "== patch, strip"
[ "$ANY_TOKENIZERS" = 0 ] || sed -i 's/"tokenizers": "tokenizers[^"]*"/"tokenizers": "tokenizers"/' "$S/transformers/dependency_versions_table.py"
[ ! -e "$R/bundle.patch" ] || (cd "$S" && patch -p1 < "$R/bundle.patch")
[ ! -d "$R/stand_ins" ] || cp -r "$R/stand_ins/." "$S/"
rm -rf "$S/bin" "$S/xgrammar/lib/libxgrammar.a" "$S"/torch_memory_saver*cu12*
find "$S" -name '*.so*' -size +300k -exec strip --strip-unneeded {} \; || true
cp -r "$HERE/boot" "$SG/"

# JIT caches (README.md): without them the first server start on the GPU machine compiles for a minute or more, and FlashInfer cannot compile at all
if [ -f "$CACHES" ]; then
  echo "== JIT caches from $CACHES"
  tar -xJf "$CACHES" -C "$W" --wildcards 'sg/tvm' 'sg/triton' 'sg/site/flashinfer/data/aot' || echo "   (some not there)"
fi

find "$SG" -name __pycache__ -prune -exec rm -rf {} +
echo "== pack"
tar -C "$W" --sort=name --owner=0 --group=0 -cf - sg | xz -6 -T2 > "$OUT/bundle.tar.xz"
ls -l "$OUT/bundle.tar.xz"; sha256sum "$OUT/bundle.tar.xz"
