#!/bin/bash
# Runs the tests that need a real init: each on a full Debian machine of its own, emulated, in which
# Muster is installed as on a node.
#
#   scripts/test-guest.sh system|zfs [NAME…]      NAMEs: only tests whose names contain one of them
#   scripts/test-guest.sh bench-zfs               what `bench zfs` measures there (optimized build)
#
# zfs, bench-zfs: that machine has OpenZFS, and Muster the program that calls its library.
# Exits with 2 when the machine can't be built, which says nothing about Muster.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
kind="${1:-}"
case "$kind" in
system) options=() ;;
zfs | bench-zfs) options=(--zfs) ;;
*)
    echo "scripts/test-guest.sh system|zfs [NAME] | bench-zfs" >&2
    exit 1
    ;;
esac
shift

started=$SECONDS
step() { # step NAME COMMAND…
    local name="$1" from=$SECONDS
    shift
    "$@" || {
        echo "make test-$kind: FAILED: $name" >&2
        return 1
    }
    echo "=== $name: $((SECONDS - from)) s" >&2
}
machine() { MUSTER_SYSTEM_GUEST="$(scripts/build-system-guest.sh "${options[@]}")"; }
# With the exit code of the script: 2 when the library can't be had.
helper() { MUSTER_ZFS_HELPER="$(scripts/build-zfs-helper.sh)" || exit "$?"; }
tests() {
    cargo nextest run --workspace --locked --success-output final \
        -E "package(muster-tests) and binary($kind)" "$@"
}

step "setup" scripts/setup.sh test
step "guest image" scripts/build-guest-image.sh
MACHINE_FAILED=2
step "machine" machine || exit "$MACHINE_FAILED"
export MUSTER_SYSTEM_GUEST
if [ "$kind" != system ]; then
    step "library" helper
    export MUSTER_ZFS_HELPER
fi
if [ "$kind" = bench-zfs ]; then
    # An example is among what every such machine gets.
    step "build" cargo build --release --locked --workspace --bins --examples
    target/release/bench zfs
    exit
fi
step "build" cargo build --workspace --all-targets --locked
step "tests" tests "$@"
echo "make test-$kind: passed in $((SECONDS - started)) s"
