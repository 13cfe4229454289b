#!/bin/bash
# Builds a full guest: Debian 12 with systemd as PID 1, for the tests that need a real system.
#
#   scripts/build-system-guest.sh [--zfs]       prints the folder that then holds
#     disk.raw      its root file system, sparse, without a partition table
#     vmlinuz       its kernel, which starts it without an initramfs
#     cloud.qcow2   the same system as an image for VMs: it boots from a disk of model nvme, and
#                   cloud-init sets it up (not with --zfs)
#     packages      what is in it
#
# --zfs: with OpenZFS and the runtimes of containers; scripts/build-zfs-modules.sh builds its modules, with
# whose exit code this one ends when it can't.
# The folder lies outside the checkout, in ${MUSTER_CACHE:-${XDG_CACHE_HOME:-~/.cache}/muster}/system-guest
# (zfs-guest), under a name made of all inputs: versions of the packages, this script, scripts/system-guest/.
# Nothing is built again while they stay the same; what nobody used for a day is removed. Packages come from the
# Debian mirrors that this machine's apt knows.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
suite=bookworm
disk_mib=4096
# The boot partition of the image for VMs, and where it begins, as all tools expect it.
boot_mib=64
boot_start_mib=1
# What the agent needs of a node, and what tests look with.
packages=(systemd-sysv udev dbus iproute2 kmod nftables procps qemu-system-x86 qemu-utils
    ca-certificates curl gzip cloud-init openssh-server qemu-guest-agent)
# What else it needs of a node with --zfs.
zfs_packages=(zfsutils-linux runc crun)
kind=system

what="system guest"
failed=1
# shellcheck source=scripts/build-cache.sh
. "$here/build-cache.sh"

case "${1:-}" in
"") ;;
--zfs)
    kind=zfs
    packages+=("${zfs_packages[@]}")
    ;;
*) die "unknown option '$1', there is --zfs" ;;
esac
need apt-get apt
need dpkg-deb dpkg
need depmod kmod
need flock util-linux
need mcopy mtools
need mkfs.ext4 e2fsprogs
need mmdebstrap mmdebstrap
need qemu-img qemu-utils
need sfdisk fdisk
need syslinux syslinux
need systemctl systemd
if [ "$(id -u)" -ne 0 ]; then
    need fakeroot fakeroot
    need newuidmap uidmap
fi
mbr=/usr/lib/syslinux/mbr/mbr.bin
[ -f "$mbr" ] || missing+=("syslinux-common (for mbr.bin)")
check_needed
open_cache "$kind-guest"

# ---- anything to do? ----
modules=
apt_private=()
if [ "$kind" = zfs ]; then
    modules="$("$here/build-zfs-modules.sh")"
    # shellcheck source=scripts/debian-contrib.sh
    . "$here/debian-contrib.sh"
    private_apt "$cache/apt" || say "the package lists could not be fetched"
    kernel="$(cut -d' ' -f1 "$modules/versions")"
else
    kernel="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-.*-cloud-amd64\).*/\1/p' | head -n 1)"
fi
# All that apt would install on nothing, with versions.
versions() {
    apt-get "${apt_private[@]}" -s -qq -o Dir::State::status=/dev/null -o APT::Install-Recommends=false \
        install '?essential' apt "${packages[@]}" | sed -n 's/^Inst \([^ ]*\) (\([^ ]*\).*/\1 \2/p'
    if [ "$kind" = zfs ]; then
        cat "$modules/versions"
    else
        apt-cache show --no-all-versions "$kernel" | sed -n 's/^Version: /kernel /p'
    fi
}
if [ -z "$kernel" ] || ! list="$(versions | LC_ALL=C sort)"; then
    newest="$(newest_build disk.raw)"
    [ -n "$newest" ] || die "the package lists lack the kernel or a package; run apt-get update"
    say "the package lists can't be used (apt-get update); taking $newest"
    echo "$newest"
    exit 0
fi
key="$({
    echo "$list"
    cat "$here/build-system-guest.sh"
    (cd "$here/system-guest" && find . -type f | LC_ALL=C sort | xargs sha256sum)
} | sha256sum | cut -c1-16)"
out="$cache/$key"
if use_build "$out" packages; then exit 0; fi
make_room 3072
root="$work/root"
mkdir "$root"

# ---- packages ----
# Files of apt sources that name Debian; what else this machine installs from is none of the guest's.
if [ "$kind" = zfs ]; then
    sources=("${contrib_sources[@]}")
else
    mapfile -t sources < <(apt-get indextargets --format '$(SOURCESENTRY)' 'Created-By: Packages' \
        'Origin: Debian' | sed 's/:[0-9]*$//' | LC_ALL=C sort -u)
fi
[ "${#sources[@]}" -gt 0 ] || die "no source of apt names Debian; run apt-get update"
apt_options=()
for setting in Acquire::http::Proxy Acquire::https::Proxy; do
    value="$(apt-config shell value "$setting" | sed "s/^value='\(.*\)'$/\1/")"
    [ -z "$value" ] || apt_options+=(--aptopt="$setting \"$value\"")
done
say "installing $(wc -l <<<"$list") packages"
if ! mmdebstrap --quiet --variant=minbase --include="$(
    IFS=,
    echo "${packages[*]}"
)" "${apt_options[@]}" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    "$suite" "$work/root.tar" "${sources[@]}" >"$work/log" 2>&1; then
    tail -n 30 "$work/log" >&2
    die "mmdebstrap could not install the packages"
fi
fetch="$work/fetch"
mkdir "$fetch"
if [ "$kind" = zfs ]; then
    cp "$modules"/linux-image-*.deb "$fetch/"
else
    (cd "$fetch" && apt-get download -qq -o APT::Sandbox::User=root "$kernel" >&2) ||
        die "cannot fetch $kernel; is the package list current (apt-get update)?"
fi
release="${kernel#linux-image-}"

# ---- file system ----
# The rest runs with one idea of who owns what: as root, or as one who seems to be.
cat >"$work/disk.sh" <<'DISK'
set -euo pipefail
root="$work/root"
tar -C "$root" -xpf "$work/root.tar" --exclude='./dev/*'
# The links of /lib and the like must not become folders.
dpkg-deb --fsys-tarfile "$fetch"/*.deb |
    tar -C "$root" -x --keep-directory-symlink --exclude='./usr/share/doc'
cp "$root/boot/vmlinuz-$release" "$work/vmlinuz"
rm "$root"/boot/*
if [ -n "$modules" ]; then
    install -D -m 644 -t "$root/lib/modules/$release/extra" "$modules"/modules/*.ko
    # Memory that guests need is not the cache's, bytes.
    echo "options zfs zfs_arc_max=$((128 << 20))" >"$root/etc/modprobe.d/zfs.conf"
    echo zfs >"$root/etc/modules-load.d/zfs.conf"
fi
depmod -b "$root" "$release"
cp -r --no-preserve=ownership "$here/system-guest/root/." "$root/"
chmod 755 "$root/usr/local/sbin/"*
# A fixed one: an empty file would make each start a first one, with questions.
echo "$(sha256sum <<<"$key" | cut -c1-32)" >"$root/etc/machine-id"
echo system-guest >"$root/etc/hostname"
# What tests read after a restart.
mkdir -p "$root/var/log/journal"
systemctl --quiet --root="$root" enable systemd-networkd.service \
    systemd-networkd-wait-online.service run-for-tests.socket
# Nothing but what a test starts.
systemctl --quiet --root="$root" mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer dpkg-db-backup.timer getty@tty1.service \
    serial-getty@ttyS0.service systemd-pstore.service
truncate -s "${disk_mib}M" "$work/disk.raw"
mkfs.ext4 -q -F -L system -E lazy_itable_init=1,root_owner=0:0 -d "$root" "$work/disk.raw"
DISK
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(fakeroot --)
say "making the disk"
work="$work" fetch="$fetch" release="$release" here="$here" key="$key" disk_mib="$disk_mib" \
    modules="$modules" \
    "${as_root[@]}" bash "$work/disk.sh" || die "the disk could not be made"

# ---- an image for VMs ----
cloud_image() {
    say "making the image"
    image="$work/cloud.raw"
    root_start_mib=$((boot_start_mib + boot_mib))
    truncate -s "$((root_start_mib + disk_mib))M" "$image"
    printf 'label: dos\nlabel-id: 0x636c6f75\nstart=%d, size=%d, type=6, bootable\nstart=%d, type=83\n' \
        $((boot_start_mib * 2048)) $((boot_mib * 2048)) $((root_start_mib * 2048)) | sfdisk -q "$image"
    dd if="$mbr" of="$image" bs=440 count=1 conv=notrunc status=none
    cat >"$work/syslinux.cfg" <<'BOOT'
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL vmlinuz
  APPEND root=/dev/nvme0n1p2 rw console=ttyS0 panic=-1
BOOT
    export MTOOLS_SKIP_CHECK=1 MTOOLSRC=/dev/null
    boot="$image@@${boot_start_mib}M"
    mformat -i "$boot" -T $((boot_mib * 2048)) -h 16 -s 32 -H $((boot_start_mib * 2048)) -v BOOT ::
    mcopy -i "$boot" "$work/vmlinuz" "$work/syslinux.cfg" ::
    syslinux -t $((boot_start_mib * 1048576)) --install "$image"
    dd if="$work/disk.raw" of="$image" bs=1M seek="$root_start_mib" conv=notrunc,sparse status=none
    qemu-img convert -f raw -O qcow2 "$image" "$work/cloud.qcow2"
    rm "$image"
}
[ "$kind" = zfs ] || cloud_image

# ---- in place, whole or not at all ----
ready="$work/ready"
mkdir "$ready"
mv "$work/disk.raw" "$work/vmlinuz" "$ready/"
[ "$kind" = zfs ] || mv "$work/cloud.qcow2" "$ready/"
echo "$list" >"$ready/packages"
rm -rf "$out"
mv "$ready" "$out"
keep_build "$out"
say "built $out ($(du -m "$out/disk.raw" | cut -f1) MiB)"
echo "$out"
