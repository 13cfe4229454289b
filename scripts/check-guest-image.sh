#!/bin/bash
# Boots the guest image once under QEMU's own emulation and checks what VMs of Muster rely on: the
# line "up" on the serial console with the identity from the metadata volume, the user script, and
# a clean power-off by the ACPI button.
#
#   scripts/check-guest-image.sh [OUT_DIR]        (default: target/guest)
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$here/../target/guest}"
image="$out/muster-guest.qcow2"
up_within_s=30
off_within_s=10

die() {
    echo "guest check: failed: $*" >&2
    [ -f "$work/console" ] && tail -n 20 "$work/console" >&2
    exit 1
}
work="$(mktemp -d)"
qemu=
cleanup() {
    [ -z "$qemu" ] || kill -9 "$qemu" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
[ -f "$image" ] || die "no $image; run scripts/build-guest-image.sh"

uuid=11111111-2222-4333-8444-555555555555
printf 'instance-id: %s\nlocal-hostname: check-me\n' "$uuid" >"$work/meta-data"
printf '#!/bin/sh\necho hello from "$(hostname)"\n' >"$work/user-data"
truncate -s 2M "$work/cidata"
mformat -i "$work/cidata" -T 4096 -h 16 -s 32 -v CIDATA ::
mcopy -i "$work/cidata" "$work/meta-data" "$work/user-data" ::

mkfifo "$work/qmp"
: >"$work/console"
start="$(date +%s%N)"
qemu-system-x86_64 -nodefaults -no-user-config -display none -M q35 -accel tcg -m 192 \
    -drive "file=$image,if=none,id=d0,snapshot=on" -device virtio-blk-pci,drive=d0,bootindex=1 \
    -drive "file=$work/cidata,if=none,id=d1,format=raw,readonly=on" -device virtio-blk-pci,drive=d1 \
    -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= \
    -serial "file:$work/console" -qmp stdio <"$work/qmp" >"$work/answers" 2>&1 &
qemu=$!
exec 8>"$work/qmp"

wait_for() { # wait_for SECONDS WHAT COMMAND…
    local end=$((SECONDS + $1)) what="$2"
    shift 2
    until "$@"; do
        kill -0 "$qemu" 2>/dev/null || [ "$what" = "the power-off" ] || die "QEMU ended: $(cat "$work/answers")"
        [ "$SECONDS" -lt "$end" ] || die "no sign of $what in time"
        sleep 0.05
    done
}
said() { grep -q "$1" "$work/console"; }
gone() { ! kill -0 "$qemu" 2>/dev/null; }
elapsed_ms() { echo $((($(date +%s%N) - start) / 1000000)); }

wait_for "$up_within_s" "the line 'up'" said "muster-guest up hostname=check-me uuid=$uuid ip=10.0.2.15"
echo "up after $(elapsed_ms) ms: $(grep -a 'muster-guest up' "$work/console" | tr -d '\r')"
wait_for "$up_within_s" "the user script" said "user-script exit=0"
said "hello from check-me" || die "the user script's output is missing"

start="$(date +%s%N)"
printf '{"execute":"qmp_capabilities"}\n{"execute":"system_powerdown"}\n' >&8
wait_for "$off_within_s" "the power-off" gone
grep -q '"guest": true' "$work/answers" || die "the guest did not switch itself off: $(cat "$work/answers")"
echo "off $(elapsed_ms) ms after the power button"
wait "$qemu" || die "QEMU ended with status $?"
qemu=
