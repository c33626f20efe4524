#!/usr/bin/env bash
# An aarch64 machine under emulation, for people who have none:
#
#   conformance/arm.sh make PYTHON    lays it into a folder of the user's cache (ASSAY_ARM)
#   conformance/arm.sh run ARGUMENT...   runs its Python, on the CPU that ARM_CPU names
#
# qemu translates instructions, one process at a time: neither root nor binfmt_misc nor a container is
# needed. A root of Debian is unpacked, not installed, and wheels are, for aarch64, of the versions
# that PYTHON has. Programs that Python starts are emulated where they are this very Python.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
arm=${ASSAY_ARM:-${XDG_CACHE_HOME:-$HOME/.cache}/assay-arm64}
site=$arm/lib/python3.11/site-packages  # of Debian 12
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)

absent() { echo "no aarch64: $1" >&2; exit 3; }

[ -n "$qemu" ] || absent "qemu-aarch64 is missing (Debian's qemu-user)"

make() {
    command -v mmdebstrap >/dev/null || absent "mmdebstrap is missing"
    [ -e "$arm/made" ] && return
    rm -rf "$arm"
    mkdir -p "$arm/bin" "$site"
    mmdebstrap --quiet --architectures=arm64 --variant=extract --skip=check/qemu \
        --include=python3.11-minimal,libpython3.11-stdlib,libgcc-s1,libstdc++6,libgomp1,tzdata \
        bookworm "$arm/root" || absent "Debian's arm64 packages are out of reach"
    requirements > "$arm/requirements.txt"
    "$1" -m pip list --format=freeze --exclude-editable | grep -i '^[a-z]' > "$arm/versions.txt"
    "$1" -m pip install --quiet --target "$site" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_26_aarch64 --platform manylinux2014_aarch64 \
        --constraint "$arm/versions.txt" --requirement "$arm/requirements.txt" \
        || absent "wheels for aarch64 are out of reach"
    printf 'home = /usr/bin\nversion = 3.11\n' > "$arm/pyvenv.cfg"
    # what a process finds as sys.executable, which it starts others by
    printf '#!/bin/sh\nexec "%s" run "$@"\n' "$checkout/conformance/arm.sh" > "$arm/bin/python"
    chmod +x "$arm/bin/python"
    mkdir -p "$arm/root/proc"
    cpuinfo > "$arm/root/proc/cpuinfo"
    touch "$arm/made"
}

requirements() {
    python3 - "$checkout/pyproject.toml" <<'PYTHON'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print(*project["dependencies"], "pytest", "hypothesis", sep="\n")
PYTHON
}

# A Neoverse V2's, by which LLVM chooses instructions: without it Python would read the host's.
cpuinfo() {
    for core in 0 1; do
        cat <<TEXT
processor	: $core
Features	: fp asimd crc32 atomics fphp asimdhp asimdrdm lrcpc asimddp sve sve2 i8mm bf16
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd4f

TEXT
    done
}

run() {
    [ -e "$arm/made" ] || absent "no root in $arm; \`make test-arm\` lays one there"
    export ASSAY_CACHE=${ASSAY_ARM_CACHE:-$arm/cache}
    # 128 bits of SVE, as a Neoverse V2 has; bin/python is not run but tells where packages are
    exec "$qemu" -L "$arm/root" -cpu "${ARM_CPU:-max,pauth-impdef=on,sve-default-vector-length=16}" \
        -0 "$arm/bin/python" "$arm/root/usr/bin/python3.11" "$@"
}

"$@"
