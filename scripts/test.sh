#!/bin/bash
# Builds everything and runs the tests, stage by stage, cheapest first.
#
#   scripts/test.sh [--full]       --full: more simulated seeds, power cuts, damaged files, inputs and
#                                  suggestions, larger attacks, every point at which an agent can
#                                  be killed, and the same on real pools
#
# Every stage runs even if an earlier one failed (but not without a build); the last line says how
# it went.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
seeds=500
if [ "${1:-}" = --full ]; then
    seeds=5000
    export MUSTER_CUTS="${MUSTER_CUTS:-1000}"
    export MUSTER_DAMAGES="${MUSTER_DAMAGES:-500}"
    export MUSTER_ABUSE="${MUSTER_ABUSE:-full}"
    export MUSTER_KILL_POINTS="${MUSTER_KILL_POINTS:-all}"
    export MUSTER_FUZZ_INPUTS="${MUSTER_FUZZ_INPUTS:-20000}"
    export MUSTER_CREATES="${MUSTER_CREATES:-200}"
    export MUSTER_SUGGESTIONS="${MUSTER_SUGGESTIONS:-1000}"
fi
export MUSTER_SIM_SEEDS="${MUSTER_SIM_SEEDS:-$seeds}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
failed=()
summary=()
stage() { # stage NAME COMMAND…
    local name="$1" from=$SECONDS verdict=ok
    shift
    echo "=== $name"
    if ! "$@"; then
        verdict=FAILED
        failed+=("$name")
    fi
    summary+=("$(printf '%-28s %-6s %4d s' "$name" "$verdict" $((SECONDS - from)))")
    echo "=== ${summary[-1]}"
    [ "$verdict" = ok ]
}
finish() {
    echo
    printf '%s\n' "${summary[@]}"
    if [ "${#failed[@]}" -gt 0 ]; then
        # Said again here, where it is seen: the output of the stages is long.
        grep -hE '^ +(FAIL|LEAK-FAIL|TIMEOUT|ABORT|SIG[A-Z]+) ' "$log" | sort -u | tail -n 40
        grep -hE -A 3 "^ *thread '.*panicked at" "$log" | cut -c 1-300 | tail -n 60
        echo "make test: FAILED after $((SECONDS - started)) s: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')"
        exit 1
    fi
    echo "make test: all ${#summary[@]} stages passed in $((SECONDS - started)) s"
    exit 0
}
# Explicit profile: what the stages select must be what was built.
nextest() {
    "${around[@]}" cargo nextest run --workspace --locked --no-tests=pass "$@" 2>&1 | tee -a "$log"
}
around=()
# A VM goes only where its whole disk has room, so a machine whose disk is nearly full takes none, though
# the tests themselves write little. They get a /tmp in memory then, in a mount namespace of their own.
roomy_tmp() {
    local kib_used kib_free
    read -r kib_used kib_free < <(df --output=used,avail /tmp | tail -n 1)
    # What the allocator sees: 6 % stay free. GiB.
    local spare=$(((kib_free * 94 - kib_used * 6) / 100 / 1024 / 1024))
    [ "$spare" -lt "${MUSTER_TEST_DISK_GIB:-40}" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        echo "/tmp has $spare GiB to spare, and 40 are wanted: tests that place VMs may fail"
        return 0
    fi
    echo "/tmp has $spare GiB to spare: the tests get one in memory"
    local script='mount -t tmpfs -o mode=1777,size=64g tests /tmp && exec "$@"'
    around=(unshare --mount --propagation private sh -c "$script" sh)
}

stage "setup" scripts/setup.sh test || finish
stage "guest image" scripts/build-guest-image.sh || finish
stage "build" cargo build --workspace --all-targets --locked || finish
# Most of these wait more than they compute: for timers, for syncs of files, for guests.
units() { nextest --test-threads "$(($(nproc) * 5 / 2))" -E 'not package(muster-tests)'; }
stage "foundation: units" units
stage "foundation: documentation" cargo test -q --doc --workspace --locked
simulation() {
    # Thousands of seeds are worth an optimized build; it keeps the checks of a debug build.
    [ "$seeds" -le 500 ] || local -x CARGO_PROFILE_DEV_OPT_LEVEL=2
    nextest --test sim --success-output immediate
}
stage "foundation: simulation" simulation
stage "foundation: power cuts" nextest --success-output immediate -E 'package(muster-tests) and test(/^cuts/)'
stage "foundation: lifecycle" nextest --success-output immediate -E 'package(muster-tests) and binary(lifecycle)'
# Those of binary(system) and binary(zfs) need a machine of their own: scripts/test-guest.sh.
real_processes() {
    local -a around=()
    roomy_tmp
    nextest -E 'package(muster-tests) and not (test(/^sim/) or test(/^cuts/) or binary(lifecycle) or binary(system) or binary(zfs))'
}
stage "foundation: real processes" real_processes
stage "contract: generated requests" scripts/fuzz-api.sh 5
[ "$seeds" -le 500 ] || stage "pools: real" scripts/test-zfs.sh
finish
