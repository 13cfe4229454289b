#!/bin/bash
# A whole Muster on this machine: one coordinator, one agent, a real virtual machine.
#
#   scripts/demo.sh start|stop
#
# `start` may be repeated: what runs already is kept, and another machine is created. Everything
# lies under demo/; sockets need short paths and lie in a folder under /tmp. No root is needed once
# scripts/setup.sh has nothing to install, and no systemd.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
demo="$root/demo"
# Two checkouts on one machine must not share sockets.
run_dir="/tmp/muster-demo-$(printf '%s' "$root" | cksum | cut -d' ' -f1)"
bin="$root/target/debug"
address=127.0.0.1:8480
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export MUSTER_URL="http://$address"

say() { echo "demo: $*"; }
die() {
    echo "demo: error: $*" >&2
    exit 1
}

pid_of() { # pid_of NAME: its process id, if it is ours and runs
    local pid
    pid="$(cat "$demo/$1.pid" 2>/dev/null)" || return 1
    # A pid from before a reboot may be another program's.
    [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "muster-$1 .*$demo/$1" &&
        echo "$pid"
}
guests() { # Processes of our guests: their command line names the demo's folders.
    pgrep -f "^([^ ]*/)?qemu-system-x86_64 .*($demo|$run_dir)/" || true
}

launch() { # launch NAME ARGS…: starts a daemon detached and waits for its ready line
    local name="$1" pid
    shift
    if pid="$(pid_of "$name")"; then
        say "$name runs already (pid $pid)"
        return
    fi
    : >"$demo/$name.out"
    setsid "$bin/muster-$name" "$@" </dev/null >"$demo/$name.out" 2>>"$demo/$name.log" &
    pid=$!
    echo "$pid" >"$demo/$name.pid"
    for _ in $(seq 600); do
        if grep -q '^ready ' "$demo/$name.out"; then
            say "$name is ready (pid $pid, log demo/$name.log)"
            return
        fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$demo/$name.log" >&2
    kill "$pid" 2>/dev/null || true
    rm -f "$demo/$name.pid"
    die "muster-$name did not start; its log is above"
}

muster() { "$bin/muster" "$@"; }

wait_for_server() { # The agent must have reported before a machine can be placed.
    local uuid
    for _ in $(seq 300); do
        uuid="$(muster server list --output json 2>/dev/null |
            jq -r '[.[] | select(.status == "running" and .setup == true)][0].uuid // empty')" || true
        if [ -n "$uuid" ]; then
            echo "$uuid"
            return
        fi
        sleep 0.2
    done
    muster server list >&2 || true
    tail -n 20 "$demo/agent.log" >&2
    die "the agent's server did not become usable within 60 s"
}

start() {
    scripts/setup.sh demo
    say "building"
    cargo build --locked -p muster-coordinator -p muster-agent -p muster-cli
    scripts/build-guest-image.sh
    mkdir -p "$demo" "$run_dir"
    chmod 700 "$run_dir"

    launch coordinator --listen "$address" --data-dir "$demo/coordinator"
    launch agent --coordinator "ws://$address" --data-dir "$demo/agent" --run-dir "$run_dir" \
        --listen 127.0.0.1:5309
    local server image vm number
    server="$(wait_for_server)"
    say "server $server is up"

    image="$(jq -r .uuid target/guest/manifest.json)"
    if [ "$(muster image get "$image" --output json 2>/dev/null | jq -r .state)" = active ]; then
        say "the guest image is in the repository already"
    else
        muster image import target/guest/muster-guest.qcow2.gz --manifest target/guest/manifest.json
    fi

    number=$(($(muster vm list --output json | jq length) + 1))
    say "creating a virtual machine"
    vm="$(muster vm create --image "$image" --ram 192 --network admin --alias "demo$number" \
        --output json | jq -r .vm_uuid)"
    say "its serial console, until it says that it is up:"
    echo
    console "$vm"
    echo
    say "virtual machines (muster vm list):"
    muster vm list
    echo
    say "history of the server (muster task list):"
    muster task list --limit 5
    cat <<HELP

demo: the cluster goes on running. Look around:
  export PATH="$bin:\$PATH"
  muster vm console demo$number        # its console; Ctrl-] detaches
  muster why vm demo$number            # where it is, and what it waits for
  muster server list
  curl -s $MUSTER_URL/vms/$vm | jq .
  make demo                      # another machine
  make demo-stop                 # end everything
HELP
}

console() { # Shows the guest's output up to its line "up".
    if muster vm console "$1" --until "muster-guest up" --timeout 120; then
        return
    fi
    die "the guest did not come up; try: $bin/muster vm console $1"
}

end() { # end NAME: asks a daemon to end, insists after 20 s
    local pid
    pid="$(pid_of "$1")" || return 0
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 200); do
        pid_of "$1" >/dev/null || break
        sleep 0.1
    done
    if pid_of "$1" >/dev/null; then
        say "muster-$1 does not end, killing it"
        kill -KILL "$pid" 2>/dev/null || true
        sleep 0.2
    fi
    rm -f "$demo/$1.pid"
    say "$1 ended"
}

stop() {
    local vm left pid
    if pid_of coordinator >/dev/null && pid_of agent >/dev/null; then
        for vm in $(muster vm list --output json 2>/dev/null | jq -r '.[].uuid'); do
            muster vm delete "$vm" --yes --timeout 60 || say "VM $vm could not be deleted"
        done
    fi
    end agent
    end coordinator
    # Guests outlive their agent; those that it could not delete are ended here.
    for pid in $(guests); do kill -KILL "$pid" 2>/dev/null || true; done
    for _ in $(seq 50); do
        [ -z "$(guests)" ] && break
        sleep 0.1
    done
    left="$(guests) $(pid_of agent || true) $(pid_of coordinator || true)"
    [ -z "${left// /}" ] || die "still running: $left"
    rm -rf "$run_dir"
    say "nothing is left running; data stay in demo/ (remove the folder to start afresh)"
}

case "${1:-}" in
start) start ;;
stop) stop ;;
*) die "usage: scripts/demo.sh start|stop" ;;
esac
