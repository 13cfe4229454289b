#!/bin/bash
# Drives every operation of the API with generated requests (schemathesis) and checks each answer
# against /openapi.json: no undeclared status, no body that its schema does not allow, no 500.
#
#   scripts/fuzz-api.sh [CASES [SCHEMATHESIS OPTION…]]     (default: 200 cases per operation)
#
# Starts a coordinator and two agents with simulated host actions on free ports, everything in a
# temporary folder, and ends them again. Needs the debug binaries. FUZZ_SEED repeats a run.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
cases="${1:-200}"
shift || true
bin="$root/target/debug"
venv="$root/target/fuzz-venv"
requirements="$root/scripts/fuzz/requirements.txt"

say() { echo "fuzz-api: $*"; }
die() {
    echo "fuzz-api: error: $*" >&2
    exit 1
}

install() { # The pinned packages, in a virtual environment of their own.
    # A moved environment's programs name the Python of the old place.
    cmp -s "$requirements" "$venv/requirements.txt" && "$venv/bin/st" --version >/dev/null 2>&1 &&
        return
    say "installing schemathesis into ${venv#"$root"/}"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$venv/requirements.txt"
}

dir=
pids=()
clean_up() {
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    [ -z "$dir" ] || rm -rf "$dir"
}
trap clean_up EXIT

launch() { # launch NAME PROGRAM ARGS…: starts a daemon and sets `address` from its ready line
    local name="$1" program="$2" pid
    shift 2
    # Without the environment of a caller's jobs, colours and settings.
    "$bin/$program" "$@" </dev/null >"$dir/$name.out" 2>"$dir/$name.log" &
    pid=$!
    pids+=("$pid")
    for _ in $(seq 600); do
        address="$(sed -n 's/^ready //p' "$dir/$name.out")"
        [ -z "$address" ] || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$dir/$name.log" >&2
    die "$program did not start; its log is above"
}

uuid() { cat /proc/sys/kernel/random/uuid; }

agent() { # agent NAME: starts one; sets `server`
    server="$(uuid)"
    launch "$1" muster-agent --coordinator "ws://$coordinator" --data-dir "$dir/$1" \
        --run-dir "$dir/$1.run" --listen 127.0.0.1:0 --server-uuid "$server" \
        --set host.actions=sim --set compute.accel=tcg --set compute.user_network=restricted
    for _ in $(seq 600); do
        [ "$(curl -s "$url/servers/$server" | jq -r .status)" = running ] && return
        sleep 0.1
    done
    die "server $server was not registered within a minute"
}

post() { # post PATH BODY
    curl -sS --fail-with-body -o /dev/null -H 'content-type: application/json' -d "$2" "$url$1"
}

posted() { # A server without an agent, and its VM.
    FUZZ_POSTED="$(uuid)" FUZZ_VM="$(uuid)"
    post "/servers/$FUZZ_POSTED/sysinfo" "{\"sysinfo\":{\"UUID\":\"$FUZZ_POSTED\"}}"
    post "/servers/$FUZZ_POSTED/events/status" "{\"vms\":{\"$FUZZ_VM\":{\"uuid\":\"$FUZZ_VM\",
        \"owner_uuid\":\"$FUZZ_VM\",\"brand\":\"kvm\",\"max_physical_memory\":128,\"quota\":1,
        \"cpu_cap\":100,\"state\":\"running\",\"zone_state\":\"running\",\"last_modified\":\"\"}}}"
    export FUZZ_POSTED FUZZ_VM
}

[ -x "$bin/muster-coordinator" ] && [ -x "$bin/muster-agent" ] || die "run \`cargo build\` first"
install
dir="$(mktemp -d /tmp/muster-fuzz.XXXXXX)"
launch coordinator muster-coordinator --listen 127.0.0.1:0 --data-dir "$dir/coordinator"
coordinator="$address"
url="http://$coordinator"
agent worker && export FUZZ_SERVER="$server"
agent victim && export FUZZ_VICTIM="$server"
posted

say "$cases cases per operation against $url"
cd "$dir"
status=0
SCHEMATHESIS_HOOKS="$root/scripts/fuzz/hooks.py" PYTHONDONTWRITEBYTECODE=1 \
    "$venv/bin/st" --config-file "$root/scripts/fuzz/schemathesis.toml" run "$url/openapi.json" \
    --max-examples "$cases" ${FUZZ_SEED:+--seed "$FUZZ_SEED"} "$@" || status=$?
for name in coordinator worker victim; do
    if grep -q panicked "$dir/$name.log"; then
        grep -A 5 panicked "$dir/$name.log" | head -n 40
        say "$name panicked"
        status=1
    fi
done
[ "$status" -eq 0 ] || cp "$dir/coordinator.log" "$root/target/fuzz-coordinator.log"
exit "$status"
