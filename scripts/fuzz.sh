#!/bin/bash
# Runs the fuzz targets (fuzz/) and prints, for each, how long it ran, how many inputs it tried and
# what it found.
#
#   scripts/fuzz.sh [TARGET…]      (default: all, FUZZ_SECONDS=300 each)
#
# Begins with the corpora of the tree and with what earlier runs thought worth keeping, in
# target/fuzz/corpus/. An input that breaks something is left in target/fuzz/found/TARGET/: put it
# into tests/corpora/TARGET/ as found-SOMETHING, where every `make test` reads it. Works with the
# stable compiler, and builds the repository's own crates only: other ones are as for the tests.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
root="$PWD"
work="$root/target/fuzz"
seconds="${FUZZ_SECONDS:-300}"

targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
bins=()
for target in "${targets[@]}"; do bins+=(--bin "fuzz-$target"); done

# What cargo calls through this has names of its own among what is built.
export RUSTC_WORKSPACE_WRAPPER="$root/scripts/fuzz/rustc"
# The whole workspace, or its libraries would have other features than for the tests.
CARGO_INCREMENTAL=0 cargo build --workspace --locked --features muster-fuzz/libfuzzer "${bins[@]}" \
    --config 'profile.dev.opt-level=1'

failed=0
summary=()
for target in "${targets[@]}"; do
    kept="$work/corpus/$target" found="$work/found/$target" log="$work/$target.log"
    mkdir -p "$kept" "$found"
    before="$(find "$found" -type f | wc -l)"
    from=$SECONDS
    echo "=== $target: $seconds s, log in ${log#"$root"/}"
    # An input may take 10 s, and the process 2 GiB: what is slow or large is found as well.
    "target/debug/fuzz-$target" "$kept" "tests/corpora/$target" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$found/" >"$log" 2>&1 || failed=1
    runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)"
    new=$(($(find "$found" -type f | wc -l) - before))
    summary+=("$(printf '%-16s %4d:%02d min %12s inputs %4d found' "$target" \
        $(((SECONDS - from) / 60)) $(((SECONDS - from) % 60)) "${runs:-?}" "$new")")
    [ "$new" -eq 0 ] || grep -a -m 1 -A 3 'panicked at\|ERROR: libFuzzer' "$log" || true
done
echo
printf '%s\n' "${summary[@]}"
exit "$failed"
