#!/bin/bash
# Builds a tiny real guest: a disk image that boots by itself, made of Debian's kernel and busybox.
#
#   scripts/build-guest-image.sh [OUT_DIR]        (default: target/guest)
#
# OUT_DIR then holds
#   muster-guest.qcow2      the disk
#   muster-guest.qcow2.gz   the file to upload to an image repository
#   manifest.json           its IMGAPI manifest (uuid, sizes, checksums)
#   vmlinuz, initrd.gz      the same guest for a direct boot
#
# Needs no root and no loop device. Equal inputs give equal bytes, and so an equal uuid; nothing is
# built again while the inputs (package versions, this script, scripts/guest/) stay the same.
# MUSTER_GUEST_KERNEL chooses a kernel release other than the current one of the Debian mirror.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$here/../target/guest}"
disk_mib=32
modules=(pvpanic-mmio virtio_pci virtio_mmio virtio_blk virtio_net virtio_console virtio_balloon virtio_rng
    button evdev qemu_fw_cfg isofs vfat nls_ascii nls_cp437 nls_utf8)

say() { echo "guest image: $*" >&2; }
die() {
    echo "guest image: error: $*" >&2
    exit 1
}

need() { # need COMMAND PACKAGE
    PATH="$PATH:/usr/sbin:/sbin" type -P "$1" >/dev/null ||
        missing+=("$2 (for $1)")
}
missing=()
need apt-get apt
need dpkg-deb dpkg
need busybox busybox-static
need cpio cpio
need depmod kmod
need gzip gzip
need mcopy mtools
need mformat mtools
need qemu-img qemu-utils
need sfdisk fdisk
need syslinux syslinux
need flock util-linux
mbr=/usr/lib/syslinux/mbr/mbr.bin
[ -f "$mbr" ] || missing+=("syslinux-common (for mbr.bin)")
busybox="$(type -P busybox || true)"
if [ -n "$busybox" ] && ! grep -qx udhcpc <<<"$("$busybox" --list)"; then
    missing+=("busybox-static (the installed busybox lacks udhcpc)")
fi
if [ "${#missing[@]}" -gt 0 ]; then
    die "missing packages: $(printf '%s, ' "${missing[@]}" | sed 's/, $//'); scripts/setup.sh installs them"
fi
export PATH="$PATH:/usr/sbin:/sbin"

mkdir -p "$out/cache"
out="$(cd "$out" && pwd)"
exec 9>"$out/cache/lock"
flock 9

# ---- which kernel ----
release="${MUSTER_GUEST_KERNEL:-}"
if [ -z "$release" ]; then
    release="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/.*Depends: linux-image-\(.*-cloud-amd64\).*/\1/p' | head -n 1)"
fi
if [ -z "$release" ]; then
    # Without package lists (offline): the newest kernel that was fetched before.
    release="$(find "$out/cache" -name 'linux-image-*-cloud-amd64_*.deb' -printf '%f\n' | sort -V |
        tail -n 1 | sed 's/^linux-image-\(.*\)_.*_.*/\1/')"
fi
[ -n "$release" ] || die "no package linux-image-cloud-amd64 in the package lists; run apt-get update"

find_deb() {
    find "$out/cache" -name "linux-image-${release}_*.deb" | sort -V | tail -n 1
}
deb="$(find_deb)"
if [ -z "$deb" ]; then
    say "fetching linux-image-$release"
    fetch="$(mktemp -d "$out/cache/fetch.XXXXXX")"
    if ! (cd "$fetch" && apt-get download -qq -o APT::Sandbox::User=root "linux-image-$release" >&2); then
        rm -rf "$fetch"
        die "cannot fetch linux-image-$release; is the package list current (apt-get update)?"
    fi
    mv "$fetch"/*.deb "$out/cache/"
    rm -rf "$fetch"
    deb="$(find_deb)"
fi

# ---- the guest agent ----
agent="$(find "$out/cache" -name 'qemu-guest-agent_*.deb' | sort -V | tail -n 1)"
if [ -z "$agent" ]; then
    say "fetching qemu-guest-agent"
    fetch="$(mktemp -d "$out/cache/fetch.XXXXXX")"
    if ! (cd "$fetch" && apt-get download -qq -o APT::Sandbox::User=root qemu-guest-agent >&2); then
        rm -rf "$fetch"
        die "cannot fetch qemu-guest-agent; is the package list current (apt-get update)?"
    fi
    mv "$fetch"/*.deb "$out/cache/"
    rm -rf "$fetch"
    agent="$(find "$out/cache" -name 'qemu-guest-agent_*.deb' | sort -V | tail -n 1)"
fi

# ---- anything to do? ----
key="$({
    echo "$(basename "$deb") $(basename "$agent")"
    cat "$busybox" "$mbr" "$here/build-guest-image.sh" "$(type -P syslinux)"
    (cd "$here/guest" && find . -type f | LC_ALL=C sort | xargs sha256sum)
} | sha256sum | cut -d' ' -f1)"
outputs=(muster-guest.qcow2 muster-guest.qcow2.gz manifest.json vmlinuz initrd.gz)
fresh=yes
for file in "${outputs[@]}"; do [ -s "$out/$file" ] || fresh=; done
if [ -n "$fresh" ] && [ "$(cat "$out/cache/key" 2>/dev/null)" = "$key" ]; then
    say "up to date: $out/muster-guest.qcow2"
    exit 0
fi

work="$(mktemp -d "$out/cache/work.XXXXXX")"
trap 'rm -rf "$work"' EXIT
# One fixed time for all that is written, so that equal inputs give equal bytes.
export SOURCE_DATE_EPOCH=1700000000
stamp() { find "$@" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

# ---- kernel and modules ----
say "unpacking $(basename "$deb")"
kernel="$work/kernel"
dpkg-deb -x "$deb" "$kernel"
[ -d "$kernel/lib" ] || ln -s usr/lib "$kernel/lib"
cp "$kernel/boot/vmlinuz-$release" "$work/vmlinuz"
depmod -b "$kernel" "$release"

root="$work/root"
mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,dev,proc,sys,run,tmp,mnt,lib/modules,www}
cp -r "$here/guest/root/." "$root/"
cp "$busybox" "$root/bin/busybox"
ln -s bin/busybox "$root/init-busybox"
for module in "${modules[@]}"; do
    modprobe -S "$release" -d "$kernel" --show-depends "$module" ||
        die "kernel $release has no module $module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$work/modules"
while read -r path; do
    name="$(basename "$path")"
    case "$name" in
    *.xz) xz -dc "$path" >"$root/lib/modules/${name%.xz}" ;;
    *) cp "$path" "$root/lib/modules/$name" ;;
    esac
    name="${name%.xz}"
    if type -P strip >/dev/null; then strip --strip-debug "$root/lib/modules/$name"; fi
    echo "$name" >>"$root/lib/modules/order"
done <"$work/modules"

# The guest agent, with the libraries that it has here: QEMU needs the same ones.
dpkg-deb -x "$agent" "$work/agent"
cp "$work/agent/usr/sbin/qemu-ga" "$root/usr/sbin/qemu-ga"
if ldd "$root/usr/sbin/qemu-ga" | grep 'not found' >&2; then
    die "qemu-guest-agent lacks libraries; scripts/setup.sh installs QEMU, which has the same ones"
fi
ldd "$root/usr/sbin/qemu-ga" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done

# ---- initramfs ----
rm "$root/init-busybox"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s
exec /sbin/init
INIT
chmod 755 "$root/init"
stamp "$root"
(cd "$root" && find . | LC_ALL=C sort |
    cpio --quiet --reproducible -o -H newc -R 0:0 | gzip -n -9) >"$work/initrd.gz"
say "initramfs of $(stat -c %s "$work/initrd.gz") bytes, kernel of $(stat -c %s "$work/vmlinuz")"

# ---- disk ----
disk="$work/disk.raw"
truncate -s "${disk_mib}M" "$disk"
printf 'label: dos\nlabel-id: 0x6d757374\nstart=2048, type=6, bootable\n' | sfdisk -q "$disk"
dd if="$mbr" of="$disk" bs=440 count=1 conv=notrunc status=none
export MTOOLS_SKIP_CHECK=1 MTOOLSRC=/dev/null
mformat -i "$disk@@1M" -T $(((disk_mib - 1) * 2048)) -h 16 -s 32 -H 2048 -N 6d757374 -v MUSTER ::
cp "$here/guest/syslinux.cfg" "$work/syslinux.cfg"
stamp "$work/vmlinuz" "$work/initrd.gz" "$work/syslinux.cfg"
mcopy -m -i "$disk@@1M" "$work/vmlinuz" "$work/initrd.gz" "$work/syslinux.cfg" ::
syslinux -t 1048576 --install "$disk"
qemu-img convert -f raw -O qcow2 "$disk" "$work/muster-guest.qcow2"
say "compressing"
gzip -n -9 -c "$work/muster-guest.qcow2" >"$work/muster-guest.qcow2.gz"

# ---- manifest ----
sum() { "$1" "$2" | cut -d' ' -f1; }
file="$work/muster-guest.qcow2.gz"
sha256="$(sum sha256sum "$file")"
# A version 5 UUID of the checksum in the URL name space of RFC 4122.
hash="$({
    printf '\x6b\xa7\xb8\x11\x9d\xad\x11\xd1\x80\xb4\x00\xc0\x4f\xd4\x30\xc8'
    printf 'muster-guest:%s' "$sha256"
} | sha1sum)"
variant="$(printf '%x' $((0x${hash:16:1} & 3 | 8)))"
uuid="${hash:0:8}-${hash:8:4}-5${hash:13:3}-${variant}${hash:17:3}-${hash:20:12}"
cat >"$work/manifest.json" <<MANIFEST
{
  "v": 2,
  "uuid": "$uuid",
  "owner": "00000000-0000-0000-0000-000000000000",
  "name": "muster-guest",
  "version": "1.0.0-${release%-cloud-amd64}",
  "description": "Tiny Linux guest for demonstrations and tests",
  "type": "zvol",
  "os": "linux",
  "public": true,
  "disabled": false,
  "image_size": $disk_mib,
  "disk_driver": "virtio",
  "nic_driver": "virtio",
  "cpu_type": "host",
  "requirements": { "min_ram": 128 },
  "files": [
    {
      "size": $(stat -c %s "$file"),
      "sha1": "$(sum sha1sum "$file")",
      "sha256": "$sha256",
      "compression": "gzip",
      "format": "qcow2"
    }
  ]
}
MANIFEST

rm -f "$out/cache/key"
for file in "${outputs[@]}"; do mv -f "$work/$file" "$out/$file"; done
echo "$key" >"$out/cache/key"
say "built $out/muster-guest.qcow2 ($(stat -c %s "$out/muster-guest.qcow2") bytes), image $uuid"
